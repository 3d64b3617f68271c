/* Functions of a driver that is newer than the table of its functions (surface.def). They pass through without a gate,
 * so a program that has one cannot sleep; the debug log names each one once. */
#ifndef NVS_UNKNOWN_H
#define NVS_UNKNOWN_H

/* The application was given `address` for `name`. Valid after nvs_resolve_driver() returned true; no lock of ours is
 * held. */
void nvs_unknown_note(const char *name, void *address);

/* After fork, in the child. */
void nvs_unknown_after_fork(void);

#endif
