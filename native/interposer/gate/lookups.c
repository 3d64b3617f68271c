/* Where the driver itself hands out functions: by name, and as tables without names. */
#include "base/bars.h"
#include "base/log.h"
#include "gate/entry.h"
#include "resolve/resolve.h"
#include "resolve/unknown.h"

#include <stdio.h>
#include <string.h>

/* ---- cuGetProcAddress: ask the driver, then put our wrapper in the place of what it returned ---- */

static void *in_place_of(const char *name, void *real)
{
	void *wrapper = nvs_wrapper_for(real);
	if (wrapper == real)
		nvs_unknown_note(name, real);
	return wrapper;
}

NVS_EXPORT CUresult cuGetProcAddress(const char *name, void **pfn, int version, cuuint64_t flags)
{
	if (!nvs_resolve_driver() || nvs_real.cuGetProcAddress == NULL)
		return CUDA_ERROR_NOT_INITIALIZED;
	NVS_ENTER_DRIVER;
	CUresult result = nvs_real.cuGetProcAddress(name, pfn, version, flags);
	if (result == CUDA_SUCCESS && pfn != NULL && *pfn != NULL)
		*pfn = in_place_of(name, *pfn);
	return result;
}

NVS_EXPORT CUresult cuGetProcAddress_v2(
	const char *name, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	if (!nvs_resolve_driver() || nvs_real.cuGetProcAddress_v2 == NULL)
		return CUDA_ERROR_NOT_INITIALIZED;
	NVS_ENTER_DRIVER;
	CUresult result = nvs_real.cuGetProcAddress_v2(name, pfn, version, flags, status);
	if (result == CUDA_SUCCESS && pfn != NULL && *pfn != NULL)
		*pfn = in_place_of(name, *pfn);
	return result;
}

/* ---- tables without names ---- */

/* Tables that every program with the CUDA runtime takes at its start. What they do is host work, or is done by a thread
 * that has just asked through a gated function which context is current. The runtime compares a hash over the tables'
 * own addresses, so they are left as they are. */
static const unsigned char of_the_runtime[][16] = {
	/* modules of the runtime */
	{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
	/* buffers of profilers */
	{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66},
	/* storage of a thread, for profilers */
	{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc},
	/* storage of a context */
	{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93},
	/* the hash */
	{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2},
};

static bool is_of_the_runtime(const CUuuid *id)
{
	for (size_t i = 0; i < sizeof(of_the_runtime) / sizeof(of_the_runtime[0]); i++)
		if (memcmp(id->bytes, of_the_runtime[i], sizeof(of_the_runtime[i])) == 0)
			return true;
	return false;
}

NVS_EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	NVS_PASS_INSIDE(cuGetExportTable, (table, id));
	CUresult result = nvs_real.cuGetExportTable(table, id);
	if (result != CUDA_SUCCESS || id == NULL || is_of_the_runtime(id))
		return result;
	char text[2 * sizeof(id->bytes) + 1];
	for (size_t i = 0; i < sizeof(id->bytes); i++)
		snprintf(text + 2 * i, 3, "%02x", (unsigned char)id->bytes[i]);
	NVS_DEBUG("%s: a table of the driver, whose functions pass no gate; the program cannot sleep", text);
	nvs_bar_raise(NVS_BAR_UNGATED);
	return result;
}
