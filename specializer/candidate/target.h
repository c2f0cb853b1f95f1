/* SPDX-License-Identifier: Apache-2.0 */
/* target.h - what kernels are made for: all in which one kind of machine differs from another for
 * the search, as data.
 *
 * One row a kind. The loop, the stages and the adviser ask for a fact by its name and never for
 * the kind, so another backend is another row here (and what its templates and its compiler are).
 * Constant; any thread.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_TARGET_H
#define WHET_SPECIALIZER_CANDIDATE_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/plan.h"

struct target {
    const char *name;     /* "cpu": in known points, and the folder of its templates */
    const char *source;   /* extension of a source: "c" */
    const char *object;   /* extension of what is loaded: "so" */
    const char *imported; /* the environment of imported texts of a language model */
    const char *peak;     /* what peak_flops are, as an adviser is told: "f32_gflop_s" */

    bool device_weights; /* in formats of the device (device_type() in engine/plan.h), its cache
                            bf16 */
    bool device_target;  /* kernels are compiled for machine->target; else for the ISA of a knob */

    /* Compiling: by a library within `whet probe` (build_nvrtc.h) instead of a compiler process. */
    bool compiler_library;
    const char *compiler_setting; /* the store's: which was used last */

    /* Texts of a language model: run sealed or not at all; beside all requests' data; where eager's
     * order of sums is one that a text can be told. */
    bool texts_sealed, texts_beside_requests, texts_may_be_bit_equal;
    bool objects_mapped; /* objects are code of processes here: their folder must allow that */
    bool compiler_counts_registers; /* its words say what a kernel takes */

    /* Probes: in a process that stays and waits for turns on the device, or in one each whose
     * reference outputs are kept for the next. */
    bool prober;
    bool weights_drawn_again; /* random ones are made in the probe, not mapped from a file */
    /* Builds, probes and steps share the cores. */
    bool shares_cores;
    /* The read bandwidth is one without caches; else that of caches is measured at the start. */
    bool bandwidth_uncached;
    bool benches_one_layer; /* a bench can keep to one layer's weights */

    /* Which comes first: one known point each of all slots in one batch, or each slot's first
     * before any is searched. */
    bool opens_together;
    /* The shares of slots are used after so many seconds of steps. */
    double seen_s;
    bool attention_first; /* `whet tune`: the others' whole steps depend on it */
    /* A space that is too large is what is near its starts, not a sample of all. */
    bool space_near_starts;
    bool known_by_distance; /* points that won on a machine and model alike are tried first */

    /* Attention slots of up to so many tokens are of steps of decodes, beyond that of prompts. */
    int32_t decodes_most;
    /* Live steps in which a run is compared with another kernel's: one in so many. */
    int32_t canary_audit_every;
    int32_t watch_every_factor; /* of specializer.watch_every */
    bool shadow_wide_always;    /* wide steps are rare enough to take each */
};

const struct target *target_of(enum machine_kind kind);
/* Compilers at once: what is asked for; with 0 one where they take cores from steps, else a quarter
 * of `cores`, at most 8: a batch has use for no more. */
int32_t target_compilers(const struct target *t, int32_t asked, int32_t cores);
/* The kind of that name in *kind; false: there is none. */
bool target_find(const char *name, enum machine_kind *kind);

#endif
