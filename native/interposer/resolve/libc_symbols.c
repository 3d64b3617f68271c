#include "resolve/libc_symbols.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct image {
	ElfW(Addr) base;
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const ElfW(Half) * versions;
};

struct search {
	const char *name;
	void *found;
};

/* glibc relocates the addresses in a loaded dynamic section in place, other loaders do not. */
static const void *dynamic_address(ElfW(Addr) base, ElfW(Addr) value)
{
	return (const void *)(value < base ? base + value : value);
}

static bool read_image(const struct dl_phdr_info *info, struct image *image)
{
	const ElfW(Dyn) *dynamic = NULL;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	if (dynamic == NULL)
		return false;
	*image = (struct image){.base = info->dlpi_addr};
	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		const void *address = dynamic_address(image->base, dynamic->d_un.d_ptr);
		switch (dynamic->d_tag) {
		case DT_SYMTAB:
			image->symbols = address;
			break;
		case DT_STRTAB:
			image->strings = address;
			break;
		case DT_GNU_HASH:
			image->gnu_hash = address;
			break;
		case DT_VERSYM:
			image->versions = address;
			break;
		default:
			break;
		}
	}
	return image->symbols != NULL && image->strings != NULL && image->gnu_hash != NULL;
}

static uint32_t gnu_hash_of(const char *name)
{
	uint32_t hash = 5381;
	for (; *name != '\0'; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

/* A symbol whose version is hidden is an old one kept for old programs. */
static bool is_default(const struct image *image, uint32_t index)
{
	return image->versions == NULL || (image->versions[index] & 0x8000) == 0;
}

static void *find(const struct image *image, const char *name)
{
	uint32_t buckets = image->gnu_hash[0], first = image->gnu_hash[1], bloom_words = image->gnu_hash[2];
	const ElfW(Addr) *bloom = (const ElfW(Addr) *)(image->gnu_hash + 4);
	const uint32_t *bucket = (const uint32_t *)(bloom + bloom_words);
	const uint32_t *chain = bucket + buckets;
	uint32_t wanted = gnu_hash_of(name);

	for (uint32_t i = bucket[wanted % buckets]; i >= first; i++) {
		uint32_t hash = chain[i - first];
		const ElfW(Sym) *symbol = &image->symbols[i];
		if ((hash | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF && is_default(image, i) &&
			strcmp(image->strings + symbol->st_name, name) == 0)
			return (void *)(image->base + symbol->st_value);
		if (hash & 1)
			break;
	}
	return NULL;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;
	struct image image;
	const char *file = strrchr(info->dlpi_name, '/');
	file = file != NULL ? file + 1 : info->dlpi_name;
	bool is_c_library = strncmp(file, "libc.", 5) == 0 || strncmp(file, "libc-", 5) == 0 ||
			    strncmp(file, "libdl.", 6) == 0 || strncmp(file, "libdl-", 6) == 0 ||
			    strncmp(file, "ld-musl", 7) == 0;
	if (is_c_library && read_image(info, &image))
		search->found = find(&image, search->name);
	return search->found != NULL;
}

void *nvs_libc_symbol(const char *name)
{
	struct search search = {.name = name};
	dl_iterate_phdr(visit, &search);
	return search.found;
}
