/* The C library's own dlsym and dlvsym, which we stand in front of. */
#ifndef NVS_LIBC_SYMBOLS_H
#define NVS_LIBC_SYMBOLS_H

/* Read from the C library's symbol table in memory, because asking any lookup function by name would find ours. Default
 * version of the symbol, whatever it is called there (GLIBC_2.2.5, 2.17, 2.34). NULL when not found. */
void *nvs_libc_symbol(const char *name);

#endif
