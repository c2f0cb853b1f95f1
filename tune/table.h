/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - measured points: what every point of a slot's space does on a machine.
 *
 * Measuring a space takes an hour of compilers; asking which strategy would have found the best of
 * it takes milliseconds, once the measurements are in a file. A file holds the machine's constants,
 * and for each slot the facts its space follows from, which of its points are in (all, or a lattice
 * thinned by seed), and one row a point. It needs no model and no compiler to be read back.
 *
 * One thread.
 */
#ifndef WHET_TUNE_TABLE_H
#define WHET_TUNE_TABLE_H

#include "specializer/adviser/cpu_facts.h"
#include "specializer/search/cost.h"
#include "specializer/search/space.h"

enum point_state { POINT_NEW, POINT_PROBED, POINT_MEASURED, POINT_REFUSED };

struct measured {
    enum point_state state;
    float build_s, probe_s, bench_s; /* wall */
    float own_s;                     /* median of one run */
    float gain, low, high;           /* paired, over the eager kernel: eager time / own time - 1 */
    int32_t pairs;
    char reason[100]; /* of a refusal */
};

/* One slot's. */
struct table {
    char slot[40];
    enum region region;
    int32_t m, whole; /* points of the space before it was thinned, when it was measured */
    enum numerics numerics;
    struct facts facts;
    struct space *space;
    struct measured *row; /* [space_size] */
};

struct tables {
    struct machine machine;
    struct cpu_facts *cpu; /* own: what machine.cpu is; NULL: the file does not say */
    int32_t threads;
    uint64_t seed; /* of the thinning */
    struct table *table;
    int n;
};

/* 0 if the table's points are those of a slot with these facts under these numerics; else an error
 * that names what it was measured with. */
int table_measures(const struct table *t, const struct facts *now, enum numerics numerics,
                   struct err *err);

/* Adds a slot: its whole space, or a lattice of at most `most` points (0: whole): values of knobs
 * are left out, drawn by t->seed, never of ISA and PACK nor one that a START row names, until it is
 * small enough. What is left keeps its neighbours, which strategies that step from point to point
 * need. */
struct table *tables_add(struct tables *t, const char *slot, enum region region, int m,
                         const struct facts *facts, enum numerics numerics, int most);
/* Adds a slot without a space, for points that were written down. */
struct table *tables_add_empty(struct tables *t, const char *slot, enum region region, int m,
                               const struct facts *facts, enum numerics numerics);
struct table *tables_find(const struct tables *t, const char *slot);
void tables_free(struct tables *t);

/* A part of `from`: every point is left out with probability `drop`, by lot from `seed`. Another
 * landscape of the same machine, with other optima. table_free(). */
struct table *table_part(const struct table *from, double drop, uint64_t seed);
void table_free(struct table *t);

/* Speed over eager of a row; 0 if it was refused or not measured. */
double measured_speed(const struct measured *m);
/* Seconds of a run of eager there, the median over the measured points; 0: none was. */
double table_eager_s(const struct table *t);
/* For simulated searches: the relative standard deviation of a short bench of the point, and a
 * standard normal deviate that belongs to a seed and a point. */
double measured_noise(const struct measured *m);
double measured_deviate(uint64_t seed, int32_t id);
/* The highest speed of a table, 0 if nothing is measured; *id the point, may be NULL. */
double table_best(const struct table *t, int32_t *id);
int table_count(const struct table *t, enum point_state state);
/* A START row of its template names the point: a search of a server begins there. */
bool table_is_start(const struct table *t, int32_t id);
/* Leaves out the points that were never decided, when the time did not last; how many. */
int tables_drop_undecided(struct tables *t);

int tables_read(struct tables *t, const char *path, struct err *err);
/* Under another name first, then renamed: what was there stays whole. */
int tables_write(const struct tables *t, const char *path, struct err *err);

#endif
