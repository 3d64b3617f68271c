/* Stands in for a driver newer than the library's table: a function it has never heard of, and a new form of one that
 * it knows. */
#include <stddef.h>
#include <string.h>

int cuInit(unsigned flags)
{
	return 0;
}

int cuStreamQuery(void *stream)
{
	return 0;
}

int cuFromTheFuture(void)
{
	return 0;
}

int cuStreamQuery_v9(void *stream)
{
	return 0;
}

int cuGetExportTable(const void **table, const void *id)
{
	*table = "table";
	return 0;
}

int cuGetProcAddress_v2(const char *name, void **pfn, int version, unsigned long long flags, int *status)
{
	int newer = version >= 90000;
	*pfn = strcmp(name, "cuFromTheFuture") == 0 ? (void *)cuFromTheFuture
	       : strcmp(name, "cuStreamQuery") == 0 ? (newer ? (void *)cuStreamQuery_v9 : (void *)cuStreamQuery)
						    : NULL;
	return *pfn == NULL;
}
