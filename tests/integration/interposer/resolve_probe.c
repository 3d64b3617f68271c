/* Prints, for each way an application can reach a driver function, which library answers it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void show(const char *way, const char *symbol, void *address)
{
	Dl_info info;
	const char *file = "none";
	if (address != NULL && dladdr(address, &info) != 0) {
		file = strrchr(info.dli_fname, '/');
		file = file != NULL ? file + 1 : info.dli_fname;
	}
	printf("%s %s %s\n", way, symbol, file);
}

#ifdef LINKED
extern int cuInit(unsigned);
extern int cuMemAlloc_v2(unsigned long long *, size_t);
#endif

typedef int (*get_v1)(const char *, void **, int, uint64_t);
typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);

int main(void)
{
#ifdef LINKED
	show("linked", "cuInit", (void *)cuInit);
	show("linked", "cuMemAlloc_v2", (void *)cuMemAlloc_v2);
#endif
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (cuda == NULL) {
		printf("%s\n", dlerror());
		return 1;
	}
	show("dlsym", "cuMemAlloc_v2", dlsym(cuda, "cuMemAlloc_v2"));
	show("dlsym", "cuLaunchKernel_ptsz", dlsym(cuda, "cuLaunchKernel_ptsz"));
	show("dlsym", "cuDeviceGetCount", dlsym(cuda, "cuDeviceGetCount"));
	show("dlsym", "cuNoSuchFunction", dlsym(cuda, "cuNoSuchFunction"));
	show("dlvsym", "cuMemAlloc_v2", dlvsym(cuda, "cuMemAlloc_v2", "NO_SUCH_VERSION"));
	show("libc", "dlsym-of-other-names", dlsym(RTLD_DEFAULT, "curl_easy_init"));
	show("next", "malloc", dlsym(RTLD_NEXT, "malloc"));

	get_v1 v1 = (get_v1)dlsym(cuda, "cuGetProcAddress");
	get_v2 v2 = (get_v2)dlsym(cuda, "cuGetProcAddress_v2");
	void *pfn = NULL;
	int status = -1;
	v1("cuMemAlloc", &pfn, 11030, 0);
	show("v1", "cuMemAlloc", pfn);
	v2("cuLaunchKernel", &pfn, 12000, 0, &status);
	show("v2", "cuLaunchKernel", pfn);
	v2("cuLaunchKernel", &pfn, 12000, 2, &status);
	show("v2-per-thread", "cuLaunchKernel", pfn);
	show("same-as-dlsym", "cuLaunchKernel_ptsz", pfn == dlsym(cuda, "cuLaunchKernel_ptsz") ? pfn : NULL);
	v2("cuDeviceGetCount", &pfn, 12000, 0, &status);
	show("same-as-dlsym", "cuDeviceGetCount", pfn == dlsym(cuda, "cuDeviceGetCount") ? pfn : NULL);
	v2("cuGetProcAddress", &pfn, 12000, 0, &status);
	show("v2", "cuGetProcAddress", pfn == dlsym(cuda, "cuGetProcAddress_v2") ? pfn : NULL);
	status = -1;
	v2("cuNoSuchFunction", &pfn, 12000, 0, &status);
	printf("status %d\n", status);

	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	show("dlsym", "nvmlDeviceGetMemoryInfo", dlsym(nvml, "nvmlDeviceGetMemoryInfo"));
	show("dlsym", "nvmlInit_v2", dlsym(nvml, "nvmlInit_v2"));
	return 0;
}
