/* SPDX-License-Identifier: Apache-2.0 */
/* candidate.h - one kernel on its way into a slot, and everything that was measured about it.
 *
 * A candidate is a point of a template's space, meant for one slot. It belongs to the specializer
 * thread; the stages (stage.h) fill in its evidence and never change its state: only life_move()
 * does, after the store has the transition on disk.
 *
 * Two identities:
 *   key         names the evidence: device, compiler, template source with its headers, knobs,
 *               slot, model shape, numerics policy. Any difference = unknown.
 *   object_key  names the compiled object: compiler, flags, source with its headers, -D list.
 *               Slots that need the same object share it.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_CANDIDATE_H
#define WHET_SPECIALIZER_CANDIDATE_CANDIDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/dispatch.h"
#include "specializer/candidate/coresident.h"
#include "specializer/candidate/refusal.h"
#include "specializer/candidate/template.h"

enum { KEY_HEX = 16 };

/* Life of a kernel (docs/specializer.md); legal transitions are a table in life.c. */
enum life {
    LIFE_PROPOSED,
    LIFE_BUILT,
    LIFE_PROBED,
    LIFE_BENCHED,
    LIFE_SHADOWED,
    LIFE_CANARY, /* passed the canary; about to be published */
    LIFE_ACTIVE,
    LIFE_RETIRED,
    LIFE_DEFERRED, /* whole steps were slower; to be tried beside other kernels: retrial.c */
    LIFE_REFUSED,
    LIFE_ROLLED_BACK,
    LIFE_DISABLED,
    LIFE_COUNT
};

/* A relative gain with its confidence interval: incumbent time / candidate time - 1. */
struct gain {
    int32_t pairs;
    double mean, low, high;
};

/* Trials in which whole steps were slower with a kernel, or could not decide (retrial.c). */
enum { RETRIALS_MOST = 3 };
struct losses {
    int32_t n;
    double low, speed; /* of the bench before the last one: lower bound, speed over eager */
    struct coresidents among[RETRIALS_MOST]; /* [n] beside which kernels */
};

/* What each stage measured. A field is 0 until its stage ran. */
struct evidence {
    /* build; *_cpu_s: processor time of the child and of all that it started */
    double build_s, build_cpu_s;
    int64_t object_bytes;
    char prompts[17]; /* hash of the prompts that an agent's text was written under */
    /* probe, over all its runs: worst row error against the oracle relative to the row's scale,
     * of the candidate and of the eager kernel on the same inputs. */
    double probe_s, probe_cpu_s;
    int32_t probe_cases;
    double own_max, own_rms, eager_max, eager_rms;
    bool bit_equal; /* same bits as the eager kernel on every case */
    char worst[96]; /* the case with the largest ratio to the eager error: "m=3 outlier" */
    /* bench */
    struct gain bench;
    double incumbent_s, own_s; /* medians of one run */
    /* Of a text: the same two on weights that the run before left in the cache; 0: not measured. */
    double warm_base_s, warm_s;
    double roofline_s; /* what the machine could do at best on these inputs */
    char against[24];  /* id of the kernel it was measured against */
    double speed;      /* relative to the eager kernel (1), through `against`'s own speed */
    bool impossible;   /* timed below the roofline: what is wrong is the measurement */
    /* shadow */
    int32_t shadow_runs, shadow_different;
    double shadow_max, shadow_rms; /* worst row, against the incumbent */
    /* canary: whole steps */
    struct gain canary;
    double step_s;    /* median step with the candidate */
    int32_t together; /* how many candidates these steps ran with at once, in different slots, and
                         were judged by; 0: it alone */
    struct losses lost;
    /* the verdict against it, or what kept the last stage from one */
    struct refusal refusal;
};

/* What the adviser warned about (bits): the checks that look for it run first. */
enum risk { RISK_NUMERIC = 1, RISK_BOUNDARY = 2, RISK_RESOURCE = 4, RISK_DYNAMIC_SHAPE = 8 };

/* What the last canary said of whole steps, where it found nothing else to say. */
enum steps_say { STEPS_UNSEEN, STEPS_UNDECIDED, STEPS_SLOWER };

struct candidate {
    char key[KEY_HEX + 1];
    char object_key[KEY_HEX + 1];
    char env[KEY_HEX + 1];  /* device, compiler, model shape, numerics */
    char body[KEY_HEX + 1]; /* hash of the text that a language model wrote, or "" */
    const struct template *template;
    struct point point;
    struct slot *slot;
    char name[160];     /* "mlp_in avx512 PACK=0 ROWS=4 ..." */
    enum origin origin; /* ORIGIN_TEMPLATE, ORIGIN_RESTORED, ORIGIN_AGENT */
    bool bit_equal;     /* the template declares canonical order for this point */
    double predicted_s; /* by the cost model */
    unsigned risk;      /* enum risk bits, from the adviser */
    const char *known;  /* the machine on which it is known to have won (static), or NULL */
    bool probe_died;    /* its last probe, or what ran it there, was killed and gave no verdict */
    bool whole;         /* the whole model passed with it when it was probed */

    char *source;        /* path of the .c or .cu file */
    char **define;       /* ["-DROWS=4", ...], NULL-terminated */
    char *object;        /* what is loaded: <object dir>/<object_key>.so, .cubin or .lt */
    char object_sum[17]; /* checksum of that file once built */

    enum life state;
    enum steps_say steps;
    struct evidence evidence;
    char reason[240]; /* evidence.refusal as a sentence: "probe: m=3: row 0: 12 values ..." */
    char *log;        /* the compiler's command line, what it said, what the probe said; or NULL */
    size_t log_words; /* where in it the words begin, behind the command line */

    struct kernel *kernel; /* loaded into the process, or NULL */
    int32_t rollbacks;
    int32_t retries;
};

struct record;

/* What every key is made with besides the point: see the top. */
struct key_parts {
    char env[KEY_HEX + 1];      /* hash of device, compiler, flags, model shape, numerics */
    char compiler[KEY_HEX + 1]; /* hash of compiler and flags alone */
    char *object_dir;           /* where objects are kept, by object key */
    char *kernel_dir;           /* where the sources were written */
    char *reference_dir;        /* where probes keep what inputs should give */
};
/* `shape` describes the model as far as kernels can tell: dimensions, types, options. */
void key_parts_fill(struct key_parts *k, const char *device, const char *compiler,
                    const char *const *flags, const char *shape, enum numerics numerics);
char *model_shape_text(const struct model *m);

/* A new candidate, in state proposed, with no evidence. */
struct candidate *candidate_new(const struct key_parts *k, const struct template *t,
                                const struct point *p, const struct facts *f, struct slot *slot);
/* The same for a text that a language model wrote: `body` is its hash, `t` an agent template. */
struct candidate *candidate_new_agent(const struct key_parts *k, const struct template *t,
                                      const struct point *p, const struct facts *f,
                                      struct slot *slot, const char *body);
void candidate_free(struct candidate *c);
/* "agent/<hash>.c" or ".cu": the file of such a text, relative to the folder of kernel sources. */
void candidate_body_name(enum machine_kind machine, const char *hash, char out[40]);
/* Notes why the candidate goes no further, for the program and, with the stage before it, as a
 * sentence for people. */
void candidate_explain(struct candidate *c, enum stage stage, enum cause cause, double value,
                       const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Notes why the candidate left its slot, or does not come back to one: CAUSE_WITHDRAWN. */
void candidate_withdrawn(struct candidate *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Notes that its outputs were found wrong while it served: CAUSE_AUDIT. */
void candidate_found_wrong(struct candidate *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Forgets the refusal, if there was one. */
void candidate_unexplain(struct candidate *c);
/* Begins a log of its build with the command line. */
void candidate_log_start(struct candidate *c, const char *const *argv);
/* Adds what a compiler or a probe said; NULL and "" add nothing. */
void candidate_log_add(struct candidate *c, const char *words);
/* What they said, without the command line; NULL if nothing. */
const char *candidate_words(const struct candidate *c);
/* The candidate as it is stored; r->log is borrowed. */
void candidate_record(const struct candidate *c, struct record *r);
/* Takes over what the store knows about the same key: state, evidence, checksum, counts. */
void candidate_recall(struct candidate *c, const struct record *r);

#endif
