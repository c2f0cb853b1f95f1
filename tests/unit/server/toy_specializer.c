/* SPDX-License-Identifier: Apache-2.0 */
/* toy_specializer.c - a specializer that answers with what it was asked, or refuses as the first
 * argument says. */
#include <stdlib.h>
#include <string.h>

#include "config/metrics.h"
#include "specializer/specializer.h"

struct specializer {
    int unused;
};

struct specializer *specializer_start(const struct config *c, struct engine *e, struct err *err)
{
    (void)c, (void)e, (void)err;
    return xcalloc(1, sizeof(struct specializer));
}

void specializer_stop(struct specializer *s)
{
    free(s);
}

static enum specializer_answer say(char **json, const char *call, const char *a, const char *b,
                                   const char *who)
{
    static const struct {
        const char *asked;
        enum specializer_answer answer;
    } refused[] = {{"missing", ANSWER_UNKNOWN},
                   {"wrong", ANSWER_WRONG},
                   {"pinned", ANSWER_CONFLICT},
                   {"full", ANSWER_FAILED},
                   {"early", ANSWER_LOADING}};
    for (size_t i = 0; a && i < sizeof refused / sizeof *refused; i++)
        if (strcmp(a, refused[i].asked) == 0) {
            *json = xasprintf("the toy says: %s", a);
            return refused[i].answer;
        }
    *json = xasprintf("{\"call\":\"%s\",\"a\":\"%s\",\"b\":\"%s\",\"who\":\"%s\"}", call,
                      a ? a : "", b ? b : "", who ? who : "");
    return ANSWER_DONE;
}

enum specializer_answer specializer_slots(struct specializer *s, const char *slot, char **json)
{
    (void)s;
    return say(json, "slots", slot, NULL, NULL);
}

enum specializer_answer specializer_kernels(struct specializer *s, const char *id, char **json)
{
    (void)s;
    return say(json, "kernels", id, NULL, NULL);
}

enum specializer_answer specializer_pin(struct specializer *s, const char *slot, const char *kernel,
                                        const char *who, char **json)
{
    (void)s;
    return say(json, "pin", slot, kernel, who);
}

enum specializer_answer specializer_unpin(struct specializer *s, const char *slot, const char *who,
                                          char **json)
{
    (void)s;
    return say(json, "unpin", slot, NULL, who);
}

enum specializer_answer specializer_disable(struct specializer *s, const char *kernel,
                                            const char *reason, const char *who, char **json)
{
    (void)s;
    return say(json, "disable", kernel, reason, who);
}

enum specializer_answer specializer_enable(struct specializer *s, const char *kernel,
                                           const char *who, char **json)
{
    (void)s;
    return say(json, "enable", kernel, NULL, who);
}

enum specializer_answer specializer_rollback(struct specializer *s, const char *slot,
                                             const char *from, const char *who, char **json)
{
    (void)s;
    return say(json, "rollback", slot, from, who);
}

enum specializer_answer specializer_set_mode(struct specializer *s, enum specializer_mode mode,
                                             const char *who, char **json)
{
    static const char *const name[] = {"run", "pause", "freeze"};
    (void)s;
    return say(json, "mode", name[mode], NULL, who);
}

enum specializer_answer specializer_trace(struct specializer *s, const char *slot, int64_t since_s,
                                          bool lines, char **json)
{
    char since[32];
    (void)s;
    snprintf(since, sizeof(since), "%lld", (long long)since_s);
    return say(json, lines ? "trace lines" : "trace", slot, since, NULL);
}

enum specializer_answer specializer_fleet(struct specializer *s, char **json)
{
    (void)s;
    *json = xstrdup("{\"state\":\"caf\xe9\"}");
    return ANSWER_DONE;
}

enum specializer_answer specializer_export(struct specializer *s, char **json)
{
    (void)s;
    return say(json, "export", NULL, NULL, NULL);
}

enum specializer_answer specializer_import(struct specializer *s, const char *body, size_t n,
                                           const char *who, char **json)
{
    (void)s, (void)body;
    char size[32];
    snprintf(size, sizeof(size), "%zu", n);
    return say(json, "import", size, NULL, who);
}

bool specializer_restoring(const struct specializer *s)
{
    (void)s;
    return false;
}

char *specializer_json(struct specializer *s)
{
    (void)s;
    return xstrdup("{\"says\":\"caf\xe9\"}"); /* in another encoding than JSON's */
}

void specializer_metrics(struct specializer *s, FILE *out)
{
    (void)s;
    metric_head(out, "toy_specializer", "gauge", "1.");
    metric_value(out, "toy_specializer", NULL, 1);
}
