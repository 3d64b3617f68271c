/* C functions from the column `takes` of surface.def: a number of words (integers, handles, pointers), or a letter for
 * each parameter. On x86-64 and arm64 a word is passed alike whatever it is, in a register or in eight bytes of the
 * stack, and so is a structure of eight bytes. */
#ifndef NVS_SIGNATURES_H
#define NVS_SIGNATURES_H

#include <stdint.h>

typedef uint64_t nvs_word;

/* An IPC handle, or an EGL frame: passed in memory. */
struct nvs_handle64 {
	uint64_t words[8];
};

#define NVS_PARAMETERS_0 (void)
#define NVS_ARGUMENTS_0 ()
#define NVS_WORDS_4 nvs_word a, nvs_word b, nvs_word c, nvs_word d
#define NVS_WORDS_8 NVS_WORDS_4, nvs_word e, nvs_word f, nvs_word g, nvs_word h
#define NVS_WORDS_12 NVS_WORDS_8, nvs_word i, nvs_word j, nvs_word k, nvs_word l
#define NVS_PARAMETERS_1 (nvs_word a)
#define NVS_PARAMETERS_2 (nvs_word a, nvs_word b)
#define NVS_PARAMETERS_3 (nvs_word a, nvs_word b, nvs_word c)
#define NVS_PARAMETERS_4 (NVS_WORDS_4)
#define NVS_PARAMETERS_5 (NVS_WORDS_4, nvs_word e)
#define NVS_PARAMETERS_6 (NVS_WORDS_4, nvs_word e, nvs_word f)
#define NVS_PARAMETERS_7 (NVS_WORDS_4, nvs_word e, nvs_word f, nvs_word g)
#define NVS_PARAMETERS_8 (NVS_WORDS_8)
#define NVS_PARAMETERS_9 (NVS_WORDS_8, nvs_word i)
#define NVS_PARAMETERS_10 (NVS_WORDS_8, nvs_word i, nvs_word j)
#define NVS_PARAMETERS_11 (NVS_WORDS_8, nvs_word i, nvs_word j, nvs_word k)
#define NVS_PARAMETERS_12 (NVS_WORDS_12)
#define NVS_PARAMETERS_15 (NVS_WORDS_12, nvs_word m, nvs_word n, nvs_word o)
#define NVS_PARAMETERS_16 (NVS_WORDS_12, nvs_word m, nvs_word n, nvs_word o, nvs_word p)
#define NVS_ARGUMENTS_1 (a)
#define NVS_ARGUMENTS_2 (a, b)
#define NVS_ARGUMENTS_3 (a, b, c)
#define NVS_ARGUMENTS_4 (a, b, c, d)
#define NVS_ARGUMENTS_5 (a, b, c, d, e)
#define NVS_ARGUMENTS_6 (a, b, c, d, e, f)
#define NVS_ARGUMENTS_7 (a, b, c, d, e, f, g)
#define NVS_ARGUMENTS_8 (a, b, c, d, e, f, g, h)
#define NVS_ARGUMENTS_9 (a, b, c, d, e, f, g, h, i)
#define NVS_ARGUMENTS_10 (a, b, c, d, e, f, g, h, i, j)
#define NVS_ARGUMENTS_11 (a, b, c, d, e, f, g, h, i, j, k)
#define NVS_ARGUMENTS_12 (a, b, c, d, e, f, g, h, i, j, k, l)
#define NVS_ARGUMENTS_15 (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
#define NVS_ARGUMENTS_16 (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)

#define NVS_PARAMETERS_WF (nvs_word a, float b)
#define NVS_PARAMETERS_WFF (nvs_word a, float b, float c)
#define NVS_PARAMETERS_WWF (nvs_word a, nvs_word b, float c)
#define NVS_PARAMETERS_WS (nvs_word a, struct nvs_handle64 b)
#define NVS_PARAMETERS_WSW (nvs_word a, struct nvs_handle64 b, nvs_word c)
#define NVS_ARGUMENTS_WF (a, b)
#define NVS_ARGUMENTS_WFF (a, b, c)
#define NVS_ARGUMENTS_WWF (a, b, c)
#define NVS_ARGUMENTS_WS (a, b)
#define NVS_ARGUMENTS_WSW (a, b, c)

/* `macro`, but for functions that hooks.def has: then NVS_NOTHING. */
#define NVS_IS_HOOKED_HOOKED ,
#define NVS_THIRD(first, second, third, ...) third
#define NVS_THIRD_OF(...) NVS_THIRD(__VA_ARGS__)
#define NVS_UNLESS_HOOKED(reason, macro) NVS_THIRD_OF(NVS_IS_HOOKED_##reason, NVS_NOTHING, macro, )
#define NVS_NOTHING(...)

#endif
