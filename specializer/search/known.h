/* SPDX-License-Identifier: Apache-2.0 */
/* known.h - points that won on other machines, tried first on this one and never trusted.
 *
 * kernels/known/NAME.txt are texts that scripts/make-known writes from `whet kernels export`; the
 * program carries them. After their first line, "whet-known 1", comments begin with '#', and
 *
 *   machine cpu ISA THREADS DEVICE       where the rows below were measured
 *   numerics NAME                        under which policy,
 *   model hidden=576 heads=9 ...         with what,
 *   weights attn_in=Q4_1,Q4_1,Q4_1 ...   in which formats
 *   SLOT SPEED TEMPLATE NAME=value ...   a winner: its speed over the eager kernel, and all knobs
 *
 * A row says nothing about a kernel but where to look for one: it is built, probed, benched and
 * tried on live steps like any other. Rows that cannot be read are left out, and the log says so.
 * Nothing changes once it is open; any thread.
 */
#ifndef WHET_SPECIALIZER_SEARCH_KNOWN_H
#define WHET_SPECIALIZER_SEARCH_KNOWN_H

#include "specializer/candidate/template.h"

struct known;

/* What the program carries. Never NULL. */
struct known *known_open(void);
/* Adds the rows of one text; `name` is for the log. How many rows were left out, or -1 if the text
 * is none of ours, or of another version. Before anybody else uses `k`. */
int known_add(struct known *k, const char *name, const char *text);
int known_rows(const struct known *k);
void known_close(struct known *k);

/* A slot on this machine. */
struct known_slot {
    const struct facts *facts; /* of its region */
    int32_t m, context;        /* upper ends of its buckets; context 0: not attention */
    int32_t threads;
    enum numerics numerics;
    const char *device; /* machine.device; NULL: of no known maker */
};
struct known_point {
    const struct template *template;
    struct point point;
    double speed, distance;
    const char *device; /* where it won; lives as long as `k` */
};
/* Points of machines with the same instruction set for weights of the same formats, nearest first
 * by model shape, bucket, number of threads, numerics and maker, then fastest first. Writes at most
 * `most`, returns how many. They may be illegal here, or none of the slot's space. */
int known_find(const struct known *k, const struct known_slot *slot, struct known_point *out,
               int most);

/* The lines before a row, for what runs here; free it. */
char *known_heading(const struct machine *machine, const struct model *model, int32_t threads,
                    enum numerics numerics);

#endif
