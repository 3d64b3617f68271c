/* cuGetProcAddress: base name, version and flags to a function. Knows only that the functions exist, not their types.
 */
#include <stdbool.h>
#include <string.h>

#include "procaddr.h"
#include "release/release.h"

#define EXPORT __attribute__((visibility("default")))

#define NVS_SIMULATED(symbol, class, since, reason, takes) EXPORT void symbol(void);
#define NVS_SIMULATED_PT(symbol, suffix, class, since, reason, takes) EXPORT void symbol(void), symbol##suffix(void);
#include "surface.def"

#define FIRST_PER_THREAD_VERSION 7000

struct symbol {
	const char *name;
	int since;
	void (*plain)(void), (*per_thread)(void);
};

static const struct symbol symbols[] = {
#define NVS_SIMULATED(symbol, class, since, reason, takes) {#symbol, since, symbol, NULL},
#define NVS_SIMULATED_PT(symbol, suffix, class, since, reason, takes) {#symbol, since, symbol, symbol##suffix},
#include "surface.def"
};

/* cuMemAlloc and cuMemAlloc_v2 are forms of cuMemAlloc. */
static bool is_form_of(const char *name, const char *base)
{
	const char *generation = strstr(name, "_v");
	size_t length = generation != NULL ? (size_t)(generation - name) : strlen(name);
	return strncmp(name, base, length) == 0 && base[length] == '\0';
}

/* The newest form that the asked version has; those newer than the driver do not exist. */
static const struct symbol *find(const char *base, int version, bool *known)
{
	const struct symbol *best = NULL;
	*known = false;
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		if (symbols[i].since > nvs_newest_function || !is_form_of(symbols[i].name, base))
			continue;
		*known = true;
		if (symbols[i].since <= version && (best == NULL || symbols[i].since >= best->since))
			best = &symbols[i];
	}
	return best;
}

CUresult nvs_proc_address(
	const char *name, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	if (name == NULL || pfn == NULL || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	bool known;
	const struct symbol *symbol = find(name, version, &known);
	*pfn = NULL;
	if (status != NULL)
		*status = symbol != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
			  : known        ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
					 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (symbol == NULL)
		return CUDA_ERROR_NOT_FOUND;
	bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && symbol->per_thread != NULL &&
			  version >= FIRST_PER_THREAD_VERSION;
	*pfn = (void *)(per_thread ? symbol->per_thread : symbol->plain);
	return CUDA_SUCCESS;
}
