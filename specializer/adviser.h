/* adviser.h - who says where to look first: a language model, or the built-in heuristic.
 *
 * Both fill the same structure, so there is one code path behind it. Advice is data: it orders a
 * space, prefers knob values and marks risks. It cannot add a point, skip a check or change a
 * tolerance: ids and values outside the space do not exist here. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_ADVISER_H
#define WHET_SPECIALIZER_ADVISER_H

#include "config/config.h"
#include "specializer/cost.h"
#include "specializer/space.h"

struct store;

/* One region's advice, as in SPECIALIZER.md section 4. Ids are of the space it was made for. */
struct advice {
    char label[96];    /* short semantic label, for the trace */
    char source[32];   /* "heuristic", or the model's name */
    int32_t *priority; /* ids, best first; a prefix of the space or all of it */
    int priorities;
    struct hint {
        char knob[32];
        int32_t value[KNOB_VALUES]; /* in order of preference */
        int values;
    } * hint;
    int hints;
    struct risk_note {
        enum risk kind;
        int32_t *id;
        int ids;
        char note[201];
    } * risk;
    int risks;
};
void advice_free(struct advice *a);
/* enum risk bits that the advice attaches to a point. */
unsigned advice_risk(const struct advice *a, int32_t id);

/* What an adviser is told about one slot. */
struct advice_request {
    const struct space *space;
    const struct cost *cost;
    double share, run_s, roofline_s; /* of step time; of the incumbent; of the machine */
    double m, context;               /* live means */
    const float *speed;              /* [size] results so far, eager = 1; 0: none */
    const unsigned char *trial;      /* [size] enum trial */
};

struct adviser;
struct adviser *adviser_open(const struct config *c, struct store *store);
void adviser_close(struct adviser *a);
/* Fills `out` for one slot; never fails (the heuristic answers when nobody else does). */
void adviser_ask(struct adviser *a, const struct advice_request *r, struct advice *out);

/* The heuristic by itself. */
void advise_heuristic(const struct advice_request *r, struct advice *out);

/* For the metrics: requests by outcome. The heuristic's are counted like anybody's. */
struct adviser_counts {
    uint64_t accepted, rejected, failed, heuristic;
    double seconds;
};
void adviser_count(const struct adviser *a, struct adviser_counts *out);

#endif
