/* What work does to memory. Runs when the work is done in simulated time, with the process's lock held. */
#include <string.h>

#include "pagemap.h"
#include "sim.h"
#include "vspace.h"

#define CHUNK ((size_t)64 << 10)

/* The mapping at address if a kernel of the context may use it. Copies and memsets (ctx NULL) are the driver's own work
 * and reach memory that any GPU has access to. */
static struct nvs_mapping *open_mapping(CUcontext ctx, uint64_t address)
{
	struct nvs_mapping *mapping = nvs_mapping_at(address);
	if (mapping == NULL)
		return NULL;
	uint64_t seen_from = ctx == NULL ? ~0ull : mapping->kind == NVS_MAPPED ? 1ull << ctx->gpu : ctx->peers;
	return (mapping->access & seen_from) != 0 ? mapping : NULL;
}

/* A stretch of memory as the context sees it. Memory that is not the driver's is the host's own. */
static bool view(CUcontext ctx, uint64_t address, size_t max, struct nvs_view *out)
{
	struct nvs_mapping *mapping = open_mapping(ctx, address);
	if (mapping == NULL) {
		if (nvs_is_device_address(address) || nvs_mapping_at(address) != NULL)
			return false;
		struct nvs_mapping *next = nvs_mapping_from(address);
		uint64_t room = next != NULL ? next->start - address : max;
		*out = (struct nvs_view){
			.bytes = (const uint8_t *)(uintptr_t)address, .length = room < max ? room : max};
		return true;
	}
	uint64_t into = address - mapping->start, room = mapping->size - into;
	*out = nvs_contents_view(&mapping->physical->contents, mapping->offset + into, room < max ? room : max);
	return true;
}

/* Store a stretch at address; `phase` is where it came from, for patterns. */
static bool store(CUcontext ctx, uint64_t address, const struct nvs_view *from, uint64_t phase)
{
	size_t length = from->length;
	uint32_t shift = 8 * ((unsigned)(phase - address) & 3);
	uint32_t pattern = shift == 0 ? from->pattern : from->pattern >> shift | from->pattern << (32 - shift);
	for (size_t done = 0; done < length;) {
		struct nvs_view part = {.bytes = from->bytes != NULL ? from->bytes + done : NULL, .pattern = pattern};
		struct nvs_mapping *mapping = open_mapping(ctx, address + done);
		if (mapping == NULL) {
			struct nvs_view host;
			if (!view(ctx, address + done, length - done, &host))
				return false;
			nvs_view_copy(
				&part, (size_t)(address + done), (void *)(uintptr_t)(address + done), host.length);
			done += host.length;
			continue;
		}
		uint64_t into = address + done - mapping->start, room = mapping->size - into;
		part.length = room < length - done ? room : length - done;
		struct nvs_contents *contents = &mapping->physical->contents;
		bool stored = part.bytes != NULL
				      ? nvs_contents_write(contents, mapping->offset + into, part.length, part.bytes)
				      : nvs_contents_fill(contents, mapping->offset + into, part.length, pattern);
		if (!stored)
			return false;
		done += part.length;
	}
	return true;
}

static bool copy_row(uint64_t dst, uint64_t src, size_t n)
{
	while (n > 0) {
		struct nvs_view part;
		if (!view(NULL, src, n, &part) || !store(NULL, dst, &part, src))
			return false;
		dst += part.length;
		src += part.length;
		n -= part.length;
	}
	return true;
}

static bool run_copy(const struct nvs_effect *effect)
{
	for (size_t row = 0; row < effect->copy.height; row++)
		if (!copy_row(effect->copy.dst + row * effect->copy.dst_pitch,
			    effect->copy.src + row * effect->copy.src_pitch, effect->copy.width))
			return false;
	return true;
}

static bool run_set(const struct nvs_effect *effect)
{
	struct nvs_view filling = {.pattern = effect->set.pattern, .length = effect->set.width};
	for (size_t row = 0; row < effect->set.height; row++) {
		uint64_t address = effect->set.dst + row * effect->set.pitch;
		/* The pattern starts with the row. */
		if (!store(NULL, address, &filling, 0))
			return false;
	}
	return true;
}

static bool read_memory(CUcontext ctx, uint64_t address, void *to, size_t n)
{
	for (size_t done = 0; done < n;) {
		struct nvs_view part;
		if (!view(ctx, address + done, n - done, &part))
			return false;
		nvs_view_copy(&part, (size_t)(address + done), (uint8_t *)to + done, part.length);
		done += part.length;
	}
	return true;
}

bool nvs_memory_look(uint64_t address, void *to, size_t n)
{
	nvs_areas_forget();
	return read_memory(NULL, address, to, n);
}

static float word_as_float(uint32_t word)
{
	float value;
	memcpy(&value, &word, sizeof(value));
	return value;
}

static uint32_t float_as_word(float value)
{
	uint32_t word;
	memcpy(&word, &value, sizeof(word));
	return word;
}

/* z = a * x + y, element by element; y is not read when 0. Uniform stretches are computed once. */
static bool combine(CUcontext ctx, uint64_t z, uint64_t x, uint64_t y, float a, uint64_t n)
{
	static float first[CHUNK / sizeof(float)], second[CHUNK / sizeof(float)];
	for (uint64_t left = n * sizeof(float); left > 0;) {
		struct nvs_view vx, vy = {.pattern = 0};
		if (!view(ctx, x, left, &vx) || (y != 0 && !view(ctx, y, vx.length, &vy)))
			return false;
		struct nvs_view result = {.length = (y != 0 ? vy.length : vx.length) & ~(size_t)3};
		if (vx.bytes == NULL && vy.bytes == NULL && result.length > 0) {
			float value = a * word_as_float(vx.pattern);
			result.pattern = float_as_word(y != 0 ? value + word_as_float(vy.pattern) : value);
		} else {
			/* A word in which two stretches meet is read as a whole. */
			result.length = result.length == 0      ? sizeof(float)
					: result.length < CHUNK ? result.length
								: CHUNK;
			if (!read_memory(ctx, x, first, result.length) ||
				(y != 0 && !read_memory(ctx, y, second, result.length)))
				return false;
			for (size_t i = 0; i < result.length / sizeof(float); i++)
				first[i] = y != 0 ? a * first[i] + second[i] : a * first[i];
			result.bytes = (const uint8_t *)first;
		}
		if (!store(ctx, z, &result, z))
			return false;
		x += result.length;
		y += y != 0 ? result.length : 0;
		z += result.length;
		left -= result.length;
	}
	return true;
}

static CUresult run_kernel(CUcontext ctx, const struct nvs_effect *effect)
{
	const uint64_t *args = effect->kernel.args;
	bool good = true;
	switch (effect->kernel.function) {
	case NVS_ADD_F32:
		if (((args[0] | args[1] | args[2]) & 3) != 0)
			return CUDA_ERROR_LAUNCH_FAILED;
		good = combine(ctx, args[0], args[1], args[2], 1, args[3]);
		break;
	case NVS_SCALE_F32:
		if (((args[0] | args[1]) & 3) != 0)
			return CUDA_ERROR_LAUNCH_FAILED;
		good = combine(ctx, args[0], args[1], 0, word_as_float((uint32_t)args[2]), args[3]);
		break;
	case NVS_SPIN:
	case NVS_FUNCTIONS:
		break;
	}
	return good ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult nvs_effect_run(CUcontext ctx, const struct nvs_effect *effect)
{
	struct nvs_mapping *mapping;
	nvs_areas_forget();
	switch (effect->kind) {
	case NVS_EFFECT_KERNEL:
		return run_kernel(ctx, effect);
	case NVS_EFFECT_COPY:
		return run_copy(effect) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
	case NVS_EFFECT_SET:
		return run_set(effect) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
	case NVS_EFFECT_FREE:
		mapping = nvs_mapping_at(effect->free);
		if (mapping == NULL || mapping->start != effect->free)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		nvs_memory_free(mapping);
		return CUDA_SUCCESS;
	case NVS_EFFECT_NONE:
	case NVS_EFFECT_HOST:
	case NVS_EFFECT_EVENT:
	case NVS_EFFECT_WAIT:
		break;
	}
	return CUDA_SUCCESS;
}
