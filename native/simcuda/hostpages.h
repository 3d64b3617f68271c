/* Memory of the host that holds uniform data without holding it: whole pages are a private mapping of a small file
 * full of the word (or, for zero, pages that were never touched). The program reads and writes them as any memory; what
 * it wrote is found out by asking the kernel. Knows nothing of CUDA. */
#ifndef NVS_SIM_HOSTPAGES_H
#define NVS_SIM_HOSTPAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A stretch of contents: bytes, or (bytes == NULL) a word whose byte i stands at every offset congruent to i modulo 4.
 */
struct nvs_view {
	const uint8_t *bytes;
	uint32_t pattern;
	size_t length;
};

/* The longest stretch of one kind at `from`, at most `max`; bytes whenever there is a doubt. */
struct nvs_view nvs_host_view(const uint8_t *from, size_t max);
/* Fill as if byte by byte. Pages are exchanged only where `exchangeable` and the memory is private and anonymous. */
void nvs_host_fill(uint8_t *to, size_t length, uint32_t pattern, bool exchangeable);
/* The same with real bytes always; byte 0 of the pattern stands where `phase` is a multiple of 4. */
void nvs_fill_bytes(uint8_t *to, size_t phase, size_t length, uint32_t pattern);

#endif
