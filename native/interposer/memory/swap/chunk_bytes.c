#include "memory/swap/backing.h"

/* In a file of its own: a test of memory that moves links smaller ones. */
const size_t nvs_chunk_bytes = 128ull << 20;
