/* Asks for functions of a newer driver in every way, twice, and calls one. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*get)(const char *, void **, int, unsigned long long, int *);

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *pfn = NULL;
	get ask = cuda != NULL ? (get)dlsym(cuda, "cuGetProcAddress_v2") : NULL;
	if (ask == NULL)
		return 1;
	for (int i = 0; i < 2; i++) {
		ask("cuStreamQuery", &pfn, 12000, 0, NULL);
		ask("cuStreamQuery", &pfn, 90000, 0, NULL);
		ask("cuFromTheFuture", &pfn, 90000, 0, NULL);
		dlsym(cuda, "cuStreamQuery");
		pfn = dlsym(cuda, "cuFromTheFuture");
	}
	/* The runtime's own table for the storage of contexts, and one that nobody knows. */
	static const unsigned char of_the_runtime[16] = {
		0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93};
	int (*get_table)(const void **, const void *) = (int (*)(const void **, const void *))dlsym(cuda, "cuGetExportTable");
	const void *table = NULL;
	if (get_table(&table, of_the_runtime) != 0 || get_table(&table, "0123456789abcdef") != 0 || table == NULL)
		return 2;
	printf("%d\n", ((int (*)(void))pfn)());
	return 0;
}
