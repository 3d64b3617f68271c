#include "contents.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK ((size_t)4096)            /* real bytes come in blocks, so that many small writes make few extents */
#define LARGEST ((size_t)1 << 20)       /* of one buffer */
#define UNIFORM_STEP ((size_t)64 << 10) /* a shorter uniform stretch inside other bytes is not looked for */

struct buffer {
	size_t references;
	uint8_t bytes[];
};

/* Extents are sorted, touch each other and cover the whole. */
struct nvs_extent {
	size_t start, end;
	struct buffer *buffer; /* NULL: pattern */
	size_t skip;           /* where in the buffer the extent starts */
	uint32_t pattern;
};

static void unreference(struct buffer *buffer)
{
	if (buffer != NULL && --buffer->references == 0)
		free(buffer);
}

bool nvs_contents_init(struct nvs_contents *contents, size_t size, void *raw)
{
	*contents = (struct nvs_contents){.size = size, .raw = raw};
	if (raw != NULL)
		return true;
	contents->room = 4;
	contents->extents = calloc(contents->room, sizeof(*contents->extents));
	if (contents->extents == NULL)
		return false;
	contents->extents[0] = (struct nvs_extent){.end = size, .pattern = NVS_UNDEFINED_PATTERN};
	contents->count = 1;
	return true;
}

void nvs_contents_free(struct nvs_contents *contents)
{
	for (size_t i = 0; i < contents->count; i++)
		unreference(contents->extents[i].buffer);
	free(contents->extents);
	*contents = (struct nvs_contents){0};
}

static size_t find(const struct nvs_contents *contents, size_t offset)
{
	size_t low = 0, high = contents->count;
	while (high - low > 1) {
		size_t middle = (low + high) / 2;
		if (contents->extents[middle].start <= offset)
			low = middle;
		else
			high = middle;
	}
	return low;
}

struct nvs_view nvs_contents_view(const struct nvs_contents *contents, size_t offset, size_t max)
{
	if (contents->raw != NULL)
		return nvs_host_view(contents->raw + offset, max);
	const struct nvs_extent *extent = &contents->extents[find(contents, offset)];
	size_t length = extent->end - offset < max ? extent->end - offset : max;
	if (extent->buffer == NULL)
		return (struct nvs_view){.pattern = extent->pattern, .length = length};
	return (struct nvs_view){
		.bytes = extent->buffer->bytes + extent->skip + (offset - extent->start), .length = length};
}

void nvs_view_copy(const struct nvs_view *view, size_t offset, void *to, size_t length)
{
	if (view->bytes != NULL)
		memcpy(to, view->bytes, length);
	else
		nvs_fill_bytes(to, offset, length, view->pattern);
}

void nvs_contents_move(struct nvs_contents *contents, void *raw)
{
	size_t size = contents->size;
	for (size_t at = 0; at < size;) {
		struct nvs_view view = nvs_contents_view(contents, at, size - at);
		nvs_view_copy(&view, at, (uint8_t *)raw + at, view.length);
		at += view.length;
	}
	nvs_contents_free(contents);
	*contents = (struct nvs_contents){.size = size, .raw = raw};
}

/* Make an extent start at offset; its index, or `count` at the very end. Needs room for one more. */
static size_t split(struct nvs_contents *contents, size_t offset)
{
	if (offset == contents->size)
		return contents->count;
	size_t at = find(contents, offset);
	struct nvs_extent *extent = &contents->extents[at];
	if (extent->start == offset)
		return at;
	memmove(extent + 1, extent, (contents->count - at) * sizeof(*extent));
	contents->count++;
	extent[0].end = offset;
	extent[1].start = offset;
	if (extent->buffer != NULL) {
		extent->buffer->references++;
		extent[1].skip += offset - extent[0].start;
	}
	return at + 1;
}

static bool make_room(struct nvs_contents *contents, size_t more)
{
	if (contents->count + more <= contents->room)
		return true;
	size_t room = contents->room * 2 + more;
	struct nvs_extent *extents = realloc(contents->extents, room * sizeof(*extents));
	if (extents == NULL)
		return false;
	contents->extents = extents;
	contents->room = room;
	return true;
}

/* Replace extents [first, last) by one; takes over the buffer. */
static void replace(struct nvs_contents *contents, size_t first, size_t last, struct nvs_extent with)
{
	for (size_t i = first; i < last; i++)
		unreference(contents->extents[i].buffer);
	contents->extents[first] = with;
	memmove(&contents->extents[first + 1], &contents->extents[last], (contents->count - last) * sizeof(with));
	contents->count -= last - first - 1;
}

static bool same_pattern(const struct nvs_extent *a, const struct nvs_extent *b)
{
	return a->buffer == NULL && b->buffer == NULL && a->pattern == b->pattern;
}

bool nvs_contents_fill(struct nvs_contents *contents, size_t offset, size_t length, uint32_t pattern)
{
	if (length == 0)
		return true;
	if (contents->raw != NULL) {
		nvs_host_fill(contents->raw + offset, length, pattern, contents->exchangeable);
		return true;
	}
	if (!make_room(contents, 2))
		return false;
	size_t first = split(contents, offset), last = split(contents, offset + length);
	struct nvs_extent whole = {.start = offset, .end = offset + length, .pattern = pattern};
	if (first > 0 && same_pattern(&contents->extents[first - 1], &whole))
		whole.start = contents->extents[--first].start;
	if (last < contents->count && same_pattern(&contents->extents[last], &whole))
		whole.end = contents->extents[last++].end;
	replace(contents, first, last, whole);
	return true;
}

/* Turn part of a patterned extent into real bytes. */
static bool materialise(struct nvs_contents *contents, size_t start, size_t end)
{
	struct buffer *buffer = malloc(sizeof(*buffer) + (end - start));
	if (buffer == NULL || !make_room(contents, 2)) {
		free(buffer);
		return false;
	}
	size_t at = split(contents, start);
	split(contents, end);
	buffer->references = 1;
	nvs_fill_bytes(buffer->bytes, start, end - start, contents->extents[at].pattern);
	contents->extents[at].buffer = buffer;
	contents->extents[at].skip = 0;
	return true;
}

/* How many bytes at the start are one word over and over. Looks by blocks; less than a block is not worth an extent. */
static size_t uniform_prefix(const uint8_t *bytes, size_t length)
{
	if (length < BLOCK || memcmp(bytes, bytes + 4, 60) != 0)
		return 0;
	size_t same = 4;
	while (same < length) {
		size_t step = length - same < BLOCK ? length - same : BLOCK;
		if (memcmp(bytes + same - 4, bytes + same, step) != 0)
			break;
		same += step;
	}
	return same == length ? same : same / BLOCK * BLOCK;
}

/* How many bytes at the start to write as they are, up to the next uniform stretch. */
static size_t mixed_prefix(const uint8_t *bytes, size_t length)
{
	size_t mixed = length < UNIFORM_STEP ? length : UNIFORM_STEP;
	while (mixed < length) {
		size_t step = length - mixed < UNIFORM_STEP ? length - mixed : UNIFORM_STEP;
		if (uniform_prefix(bytes + mixed, step) == step)
			break;
		mixed += step;
	}
	return mixed;
}

static uint32_t pattern_at(const uint8_t *bytes, size_t offset)
{
	uint8_t word[4];
	uint32_t pattern;
	for (size_t i = 0; i < 4; i++)
		word[(offset + i) & 3] = bytes[i];
	memcpy(&pattern, word, sizeof(pattern));
	return pattern;
}

static bool write_bytes(struct nvs_contents *contents, size_t offset, size_t length, const uint8_t *bytes)
{
	while (length > 0) {
		struct nvs_extent *extent = &contents->extents[find(contents, offset)];
		if (extent->buffer == NULL) {
			size_t start = offset / BLOCK * BLOCK, end = (offset + length + BLOCK - 1) / BLOCK * BLOCK;
			start = start > extent->start ? start : extent->start;
			end = end < extent->end ? end : extent->end;
			if (!materialise(contents, start, end - start < LARGEST ? end : start + LARGEST))
				return false;
			continue;
		}
		size_t n = extent->end - offset < length ? extent->end - offset : length;
		memmove(extent->buffer->bytes + extent->skip + (offset - extent->start), bytes, n);
		offset += n;
		bytes += n;
		length -= n;
	}
	return true;
}

bool nvs_contents_write(struct nvs_contents *contents, size_t offset, size_t length, const void *from)
{
	const uint8_t *bytes = from;
	if (contents->raw != NULL) {
		memmove(contents->raw + offset, bytes, length);
		return true;
	}
	while (length > 0) {
		size_t n = uniform_prefix(bytes, length);
		bool good;
		if (n > 0) {
			good = nvs_contents_fill(contents, offset, n, pattern_at(bytes, offset));
		} else {
			n = mixed_prefix(bytes, length);
			good = write_bytes(contents, offset, n, bytes);
		}
		if (!good)
			return false;
		offset += n;
		bytes += n;
		length -= n;
	}
	return true;
}
