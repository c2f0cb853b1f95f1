/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - `whet bench`: eager against specialized in one run, straight through the backend.
 *
 *   whet bench decode|prefill|step|region --model PATH | --shape NAME [--json FILE]
 *              [--batch 1,2,4,8] [--context 128,512] [--prompt 128,512,2048] [--pairs 7]
 *              [--starts] [--points FILE] [options of `whet serve`]
 *
 * What each is: bench_usage.
 */
#ifndef WHET_BENCH_BENCH_H
#define WHET_BENCH_BENCH_H

/* argv[0] is "bench". The process's exit status: 0, 1 failure, 2 usage. */
int bench_main(int argc, char **argv);
extern const char bench_usage[];

#endif
