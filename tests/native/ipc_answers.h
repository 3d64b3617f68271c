/* What an exporter of shared memory may say. */
#ifndef NVS_IPC_ANSWERS_H
#define NVS_IPC_ANSWERS_H

#include "ipc/wire.h"

/* Two chunks of 2 MiB, an allocation of 3 in them. */
static struct nvs_ipc_answer sound_answer(void)
{
	struct nvs_ipc_answer answer = nvs_ipc_answer_make(NVS_IPC_GIVEN);
	answer.whole = 4 << 20;
	answer.offset = 1 << 19;
	answer.size = 3 << 20;
	answer.chunk_count = answer.count = 2;
	answer.sizes[0] = answer.sizes[1] = 2 << 20;
	return answer;
}

#endif
