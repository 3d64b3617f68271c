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
	printf("%d\n", ((int (*)(void))pfn)());
	return 0;
}
