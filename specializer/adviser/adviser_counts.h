/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_counts.h - what came of all questions, for the metrics. No locking. */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_COUNTS_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_COUNTS_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "config/metrics.h"
#include "specializer/adviser/adviser_http.h"
#include "specializer/adviser/adviser_limits.h"
#include "specializer/adviser/adviser_reply.h"

/* What became of replies that came when the search they were for had ended. */
enum late { LATE_USED, LATE_DROPPED, LATES };

/* How a question ended, by what was asked: advice or moves. */
enum reply_end { REPLY_ACCEPTED, REPLY_REJECTED, REPLY_FAILED, REPLY_ENDS };

struct adviser_counts {
    uint64_t accepted, rejected, failed; /* questions that were put */
    uint64_t heuristic;                  /* answers of the heuristic */
    uint64_t reply[REPLY_FAULTS], call[CALL_FAULTS], held[HOLDS];
    uint64_t late[LATES];
    uint64_t of_kind[2][REPLY_ENDS];        /* advice; moves */
    uint64_t changes_kept, changes_dropped; /* of accepted moves */
    uint64_t tokens_in, tokens_out;
    struct histogram seconds;
};

/* Prometheus text. */
void adviser_counts_print(struct adviser_counts *c, enum breaker breaker, FILE *out);
/* For the dashboard: of the reasons only those that occurred. Caller deletes. */
cJSON *adviser_counts_json(const struct adviser_counts *c, enum breaker breaker);

#endif
