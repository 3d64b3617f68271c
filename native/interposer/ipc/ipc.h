/* Memory from cuMemAlloc that several processes use: cuIpcGetMemHandle and cuIpcOpenMemHandle. The driver's own way
 * does not know memory like ours, so the chunks go from process to process as file descriptors (decision 10). */
#ifndef NVS_IPC_H
#define NVS_IPC_H

#include <stdbool.h>

#include "cuda_abi.h"

struct nvs_allocation;
struct nvs_import;

/* Can other processes be given this allocation? */
bool nvs_ipc_capable(const struct nvs_allocation *allocation);

/* No work may use the memory any more, and its addresses are out of the table: give them back. */
void nvs_import_destroy(struct nvs_import *import);

/* After fork, in the child: what was exported is the parent's to give. */
void nvs_ipc_after_fork(void);

#endif
