/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_counts.c - see adviser_counts.h. Every reason is always there, so that an alert on one
 * can be written before it ever happened. */
#include "specializer/adviser/adviser_counts.h"

static void sample(FILE *out, const char *name, const char *key, const char *value, uint64_t n)
{
    char label[80];
    snprintf(label, sizeof label, "%s=\"%s\"", key, value);
    metric_value(out, name, label, (double)n);
}

static void put_reasons(const struct adviser_counts *c, FILE *out)
{
    static const char name[] = "adviser_faults_total";
    metric_head(out, name, "counter", "Replies not used and calls not answered, by reason");
    for (int i = 0; i < REPLY_FAULTS; i++)
        sample(out, name, "reason", reply_fault_name((enum reply_fault)i), c->reply[i]);
    for (int i = CALL_OK + 1; i < CALL_FAULTS; i++)
        sample(out, name, "reason", call_fault_name((enum call_fault)i), c->call[i]);
    static const char held[] = "adviser_held_total";
    metric_head(out, held, "counter", "Questions that were not put, by reason");
    for (int i = HOLD_NOT + 1; i < HOLDS; i++)
        sample(out, held, "reason", hold_name((enum hold)i), c->held[i]);
}

static const char *const kinds[2] = {"advice", "moves"}, *const ends[REPLY_ENDS] = {
                                                             "accepted", "rejected", "failed"};

static void put_kinds(const struct adviser_counts *c, FILE *out)
{
    static const char replies[] = "adviser_replies_total", changes[] = "adviser_changes_total";
    char label[80];
    metric_head(out, replies, "counter", "Questions that were put, by kind and outcome");
    for (int k = 0; k < 2; k++)
        for (int e = 0; e < REPLY_ENDS; e++) {
            snprintf(label, sizeof label, "kind=\"%s\",outcome=\"%s\"", kinds[k], ends[e]);
            metric_value(out, replies, label, (double)c->of_kind[k][e]);
        }
    metric_head(out, changes, "counter",
                "Changes of knobs in accepted moves, by whether they are legal where they stand");
    sample(out, changes, "result", "kept", c->changes_kept);
    sample(out, changes, "result", "dropped", c->changes_dropped);
}

void adviser_counts_print(struct adviser_counts *c, enum breaker breaker, FILE *out)
{
    static const char requests[] = "adviser_requests_total";
    metric_head(out, requests, "counter", "Requests for advice by outcome");
    sample(out, requests, "outcome", "accepted", c->accepted);
    sample(out, requests, "outcome", "rejected", c->rejected);
    sample(out, requests, "outcome", "failed", c->failed);
    sample(out, requests, "outcome", "heuristic", c->heuristic);
    put_reasons(c, out);
    put_kinds(c, out);
    static const char late[] = "adviser_late_replies_total";
    metric_head(out, late, "counter",
                "Replies accepted for a search that had ended, by whether the next one used them");
    sample(out, late, "result", "used", c->late[LATE_USED]);
    sample(out, late, "result", "dropped", c->late[LATE_DROPPED]);
    static const char tokens[] = "adviser_tokens_total";
    metric_head(out, tokens, "counter", "Tokens of questions and replies");
    sample(out, tokens, "direction", "in", c->tokens_in);
    sample(out, tokens, "direction", "out", c->tokens_out);
    metric_head(out, "adviser_seconds", "histogram", "Time from a question to its reply");
    metric_histogram(out, "adviser_seconds", NULL, &c->seconds);
    metric_head(out, "adviser_breaker_state", "gauge",
                "Circuit breaker of the adviser: 0 closed, 1 half open, 2 open");
    metric_value(out, "adviser_breaker_state", NULL, breaker);
}

static void occurred(cJSON *o, const char *reason, uint64_t n)
{
    if (n > 0)
        cJSON_AddNumberToObject(o, reason, (double)n);
}

cJSON *adviser_counts_json(const struct adviser_counts *c, enum breaker breaker)
{
    static const char *const states[] = {"closed", "half_open", "open"};
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "breaker", states[breaker]);
    cJSON_AddNumberToObject(o, "accepted", (double)c->accepted);
    cJSON_AddNumberToObject(o, "rejected", (double)c->rejected);
    cJSON_AddNumberToObject(o, "failed", (double)c->failed);
    cJSON_AddNumberToObject(o, "heuristic", (double)c->heuristic);
    for (int k = 0; k < 2; k++) {
        cJSON *kind = cJSON_AddObjectToObject(o, kinds[k]);
        for (int e = 0; e < REPLY_ENDS; e++)
            cJSON_AddNumberToObject(kind, ends[e], (double)c->of_kind[k][e]);
    }
    cJSON_AddNumberToObject(o, "changes_kept", (double)c->changes_kept);
    cJSON_AddNumberToObject(o, "changes_dropped", (double)c->changes_dropped);
    cJSON_AddNumberToObject(o, "late_used", (double)c->late[LATE_USED]);
    cJSON_AddNumberToObject(o, "late_dropped", (double)c->late[LATE_DROPPED]);
    cJSON_AddNumberToObject(o, "tokens_in", (double)c->tokens_in);
    cJSON_AddNumberToObject(o, "tokens_out", (double)c->tokens_out);
    cJSON *faults = cJSON_AddObjectToObject(o, "faults");
    for (int i = 0; i < REPLY_FAULTS; i++)
        occurred(faults, reply_fault_name((enum reply_fault)i), c->reply[i]);
    for (int i = CALL_OK + 1; i < CALL_FAULTS; i++)
        occurred(faults, call_fault_name((enum call_fault)i), c->call[i]);
    cJSON *held = cJSON_AddObjectToObject(o, "held");
    for (int i = HOLD_NOT + 1; i < HOLDS; i++)
        occurred(held, hold_name((enum hold)i), c->held[i]);
    return o;
}
