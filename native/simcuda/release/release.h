/* Which release the driver is, as CUDA_VERSION. */
#ifndef NVS_SIM_RELEASE_H
#define NVS_SIM_RELEASE_H

extern const int nvs_driver_version;
/* Functions of later releases cannot be found. */
extern const int nvs_newest_function;

#endif
