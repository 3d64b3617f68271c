/* A driver that is there and does not work: what cuInit does is chosen when it is built. */
#include <stdlib.h>
#include <unistd.h>

int cuMemAlloc_v2(void)
{
	return 0;
}

int cuGetErrorName(int error, const char **name)
{
	*name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
	return 0;
}

int cuInit(unsigned flags)
{
#if defined(HANGS)
	for (;;)
		pause();
#elif defined(CRASHES)
	abort();
#endif
	return 803;
}
