/* The application's own virtual memory: cuMemCreate, cuMemMap and their kin. */
#ifndef NVS_VIRTUAL_H
#define NVS_VIRTUAL_H

void nvs_virtual_after_fork(void);

#endif
