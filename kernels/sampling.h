/* SPDX-License-Identifier: Apache-2.0 */
/* sampling.h - the parameters of a draw that are one number each, for host and devices.
 *
 * One row makes the member of struct sampling (engine/sampler.h), reads it from a request with its
 * default and range (server/params.c), and brings it to a device (engine/cuda/sample.c). What it
 * does to logits is written down twice, in engine/sampler.c and kernels/cuda/eager_sample.cu; both,
 * and everything else that must know all of them, say so to the compiler by SAMPLING_NUMBERS_ARE().
 */
#ifndef WHET_KERNELS_SAMPLING_H
#define WHET_KERNELS_SAMPLING_H

/* X(name, default, least, most): as in the API. */
#define SAMPLING_NUMBERS(X)            \
    X(temperature, 1, 0, 2)            \
    X(top_p, 1, 0, 1)                  \
    X(min_p, 0, 0, 1)                  \
    X(repetition_penalty, 1, 0.01, 10) \
    X(presence_penalty, 0, -2, 2)      \
    X(frequency_penalty, 0, -2, 2)

#define SAMPLING_ONE(name, value, least, most) +1
enum { SAMPLING_NUMBERS_COUNT = SAMPLING_NUMBERS(SAMPLING_ONE) };

#define SAMPLING_MEMBER(name, value, least, most) float name;

#ifdef __cplusplus
#define SAMPLING_ASSERT static_assert
#else
#define SAMPLING_ASSERT _Static_assert
#endif
/* Stands where each of them is dealt with by name: with one more row, that place does not compile
 * until it deals with the new one and says so. */
#define SAMPLING_NUMBERS_ARE(n) \
    SAMPLING_ASSERT(SAMPLING_NUMBERS_COUNT == (n), "a sampling parameter is new here")

#endif
