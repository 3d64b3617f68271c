/* Built-in kernels, as the launches see them. */
#ifndef NVS_SIM_MODULE_H
#define NVS_SIM_MODULE_H

#include "sim.h"

struct CUfunc_st {
	const char *name;
	size_t parameters;
	uint8_t sizes[4]; /* of the parameters, bytes */
};

bool nvs_is_function(CUfunction function);
enum nvs_function nvs_function_number(CUfunction function);

#endif
