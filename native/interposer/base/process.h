/* The process around the library: it may fork, and it ends. */
#ifndef NVS_PROCESS_H
#define NVS_PROCESS_H

/* From the first call on, a forked child starts afresh, and the driver is left alone once exit handlers run. Defined in
 * process.c, above all folders, because it speaks to each of them. After cuInit: exit handlers run in reverse, and the
 * driver must still be there when ours does. */
void nvs_process_watch(void);

#endif
