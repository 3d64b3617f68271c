/* node.conf: one `key value` per line, written by sim.py. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/node.h"

enum kind { TEXT, U64, REAL, INT, UUID };

struct field {
	const char *key;
	enum kind kind;
	size_t offset, size;
};

#define AT(member) offsetof(struct nvs_node, member), sizeof(((struct nvs_node *)0)->member)

static const struct field fields[] = {
	{"name", TEXT, AT(name)},
	{"speed", REAL, AT(speed)},
	{"profile", TEXT, AT(profile.name)},
	{"display_name", TEXT, AT(profile.display_name)},
	{"memory_bytes", U64, AT(profile.memory_bytes)},
	{"context_bytes", U64, AT(profile.context_bytes)},
	{"memory_bandwidth", REAL, AT(profile.memory_bandwidth)},
	{"flops", REAL, AT(profile.flops)},
	{"link_h2d", REAL, AT(profile.link_h2d)},
	{"link_d2h", REAL, AT(profile.link_d2h)},
	{"link_duplex", REAL, AT(profile.link_duplex)},
	{"pageable_h2d", REAL, AT(profile.pageable_h2d)},
	{"pageable_d2h", REAL, AT(profile.pageable_d2h)},
	{"prefetch_h2d", REAL, AT(profile.prefetch_h2d)},
	{"prefetch_d2h", REAL, AT(profile.prefetch_d2h)},
	{"fault_bandwidth", REAL, AT(profile.fault_bandwidth)},
	{"timeslice_efficiency", REAL, AT(profile.timeslice_efficiency)},
	{"launch_overhead", REAL, AT(profile.launch_overhead)},
	{"host_register_per_gib", REAL, AT(profile.host_register_per_gib)},
	{"host_alloc_per_gib", REAL, AT(profile.host_alloc_per_gib)},
	{"mem_create", REAL, AT(profile.mem_create)},
	{"mem_map", REAL, AT(profile.mem_map)},
	{"mem_set_access", REAL, AT(profile.mem_set_access)},
	{"mem_unmap", REAL, AT(profile.mem_unmap)},
	{"mem_release", REAL, AT(profile.mem_release)},
	{"checkpoint_out", REAL, AT(profile.checkpoint_out)},
	{"checkpoint_in", REAL, AT(profile.checkpoint_in)},
	{"checkpoint_d2h", REAL, AT(profile.checkpoint_d2h)},
	{"checkpoint_h2d", REAL, AT(profile.checkpoint_h2d)},
	{"checkpointed_bytes", U64, AT(profile.checkpointed_bytes)},
	{"compute_major", INT, AT(profile.compute_major)},
	{"compute_minor", INT, AT(profile.compute_minor)},
	{"multiprocessors", INT, AT(profile.multiprocessors)},
	{"uuid", UUID, AT(gpus[0].uuid)},
	{"compute_mode", INT, AT(setup.compute_mode)},
	{"mig_mode", INT, AT(setup.mig_mode)},
	{"cuda_reversed", INT, AT(setup.cuda_reversed)},
	{"older_driver", INT, AT(setup.older_driver)},
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))
_Static_assert(FIELDS <= 64, "one bit each says which were seen");

static bool store(struct nvs_node *node, const struct field *field, const char *value)
{
	char *to = (char *)node + field->offset, *end = NULL;
	errno = 0;
	switch (field->kind) {
	case TEXT:
		snprintf(to, field->size, "%s", value);
		return value[0] != '\0' && strlen(value) < field->size;
	case U64:
		*(uint64_t *)(void *)to = strtoull(value, &end, 10);
		break;
	case INT:
		*(int32_t *)(void *)to = (int32_t)strtol(value, &end, 10);
		break;
	case REAL:
		*(double *)(void *)to = strtod(value, &end);
		if (*(double *)(void *)to <= 0)
			return false;
		break;
	case UUID:
		if (node->gpu_count == NVS_GPUS || strlen(value) != NVS_UUID_SIZE - 1)
			return false;
		snprintf(node->gpus[node->gpu_count++].uuid, NVS_UUID_SIZE, "%s", value);
		return true;
	}
	return errno == 0 && end != value && *end == '\0';
}

static bool read_line(struct nvs_node *node, char *line, uint64_t *seen)
{
	line[strcspn(line, "\n")] = '\0';
	char *value = strchr(line, ' ');
	if (value == NULL)
		return line[0] == '\0';
	*value++ = '\0';
	for (size_t i = 0; i < FIELDS; i++) {
		if (strcmp(fields[i].key, line) != 0)
			continue;
		*seen |= 1ull << i;
		return store(node, &fields[i], value);
	}
	return true; /* a key of a later version */
}

bool nvs_config_read(const char *directory, struct nvs_node *node, char *error, size_t size)
{
	char path[4096], line[512];
	uint64_t seen = 0;
	snprintf(path, sizeof(path), "%s/node.conf", directory);
	FILE *file = fopen(path, "re");
	if (file == NULL) {
		snprintf(error, size, "there is no node at %s (%s)", directory, strerror(errno));
		return false;
	}
	bool good = true;
	while (good && fgets(line, sizeof(line), file) != NULL) {
		good = read_line(node, line, &seen);
		if (!good)
			snprintf(error, size, "%s: bad value for '%s'", path, line);
	}
	fclose(file);
	for (size_t i = 0; good && i < FIELDS; i++) {
		good = (seen & 1ull << i) != 0;
		if (!good)
			snprintf(error, size, "%s: '%s' is missing", path, fields[i].key);
	}
	return good;
}
