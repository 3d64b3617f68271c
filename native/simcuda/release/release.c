/* Which release the driver is. Two libraries are made of the same code: the present driver, and one of before the
 * checkpoint calls. */
#include <limits.h>

#include "release/release.h"

#ifdef NVS_OLDER_DRIVER
const int nvs_driver_version = 12040;
const int nvs_newest_function = 12040;
#else
const int nvs_driver_version = 13000;
const int nvs_newest_function = INT_MAX;
#endif
