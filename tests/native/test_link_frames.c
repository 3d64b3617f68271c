/* Frames as they come in: whole, byte by byte, several at once, and those that are not ours. */
#include "fake_gpu.h"

#include <string.h>

#include "link/state.h"

static struct nvs_frames frames;

struct wire {
	struct nvs_header header;
	uint8_t payload[24];
};

static struct wire frame(uint16_t type, uint32_t sequence)
{
	struct wire wire = {
		.header = {
			.magic = NVS_MAGIC, .version = NVS_VERSION, .type = type, .length = 24, .sequence = sequence}};
	memset(wire.payload, (int)sequence, sizeof(wire.payload));
	return wire;
}

static void feed(const void *bytes, size_t size)
{
	memcpy(frames.bytes + frames.used, bytes, size);
	frames.used += size;
}

static void start(void)
{
	frames.used = frames.taken = frames.expected = 0;
}

static enum nvs_frame_result next(uint16_t *type, uint8_t *first_byte)
{
	struct nvs_header header = {0};
	const void *payload = NULL;
	enum nvs_frame_result result = nvs_frames_next(&frames, &header, &payload);
	*type = header.type;
	*first_byte = payload != NULL ? *(const uint8_t *)payload : 0;
	return result;
}

static void frames_come_in_any_portions(void)
{
	uint16_t type;
	uint8_t byte;
	struct wire first = frame(NVS_SCHED_ON, 1), second = frame(NVS_LOCK_OK, 2);
	/* GIVEN a frame that comes byte by byte, WHEN it is complete, THEN it is there, and not before */
	start();
	for (size_t i = 0; i < sizeof(first); i++) {
		CHECK(next(&type, &byte) == NVS_FRAME_NONE);
		feed((uint8_t *)&first + i, 1);
	}
	CHECK(next(&type, &byte) == NVS_FRAME_READY && type == NVS_SCHED_ON && byte == 1);
	/* GIVEN two at once and the beginning of a third, THEN two are there */
	start();
	feed(&first, sizeof(first));
	feed(&second, sizeof(second));
	feed(&first, 7);
	CHECK(next(&type, &byte) == NVS_FRAME_READY && type == NVS_SCHED_ON && byte == 1);
	CHECK(next(&type, &byte) == NVS_FRAME_READY && type == NVS_LOCK_OK && byte == 2);
	CHECK(next(&type, &byte) == NVS_FRAME_NONE);
}

static enum nvs_frame_result result_of(struct wire wire)
{
	uint16_t type;
	uint8_t byte;
	start();
	feed(&wire, sizeof(wire));
	return next(&type, &byte);
}

static void what_is_not_the_protocol_is_bad(void)
{
	struct wire wire = frame(NVS_LOCK_OK, 1);
	wire.header.magic ^= 1;
	CHECK(result_of(wire) == NVS_FRAME_BAD);
	wire = frame(NVS_LOCK_OK, 1);
	wire.header.length = NVS_MAX_REQUEST + 1;
	CHECK(result_of(wire) == NVS_FRAME_BAD);
	wire = frame(NVS_LOCK_OK, 2); /* a gap */
	CHECK(result_of(wire) == NVS_FRAME_BAD);
	wire = frame(NVS_LOCK_OK, 0); /* a replay */
	CHECK(result_of(wire) == NVS_FRAME_BAD);
	wire = frame(NVS_LOCK_OK, 1);
	wire.header.version = NVS_VERSION + 1;
	CHECK(result_of(wire) == NVS_FRAME_BAD);
	/* but a refusal is read from any version, and unknown types are framed like others */
	wire.header.type = NVS_REFUSED;
	CHECK(result_of(wire) == NVS_FRAME_READY);
	CHECK(result_of(frame(999, 1)) == NVS_FRAME_READY);
}

static void random_bytes_never_overrun(void)
{
	unsigned seed = 1;
	for (int round = 0; round < 20000; round++) {
		struct wire wire = frame(NVS_LOCK_OK, 1);
		for (int i = 0; i < 3; i++)
			((uint8_t *)&wire)[(unsigned)rand_r(&seed) % sizeof(wire)] = (uint8_t)rand_r(&seed);
		enum nvs_frame_result result = result_of(wire);
		CHECK(frames.taken <= frames.used);
		CHECK(result != NVS_FRAME_READY || wire.header.length <= sizeof(wire.payload));
	}
}

int main(void)
{
	frames_come_in_any_portions();
	what_is_not_the_protocol_is_bad();
	random_bytes_never_overrun();
	return 0;
}
