/* SPDX-License-Identifier: Apache-2.0 */
/* client_rules.c - see client_rules.h.
 *
 * Anything that is not understood is an error: a limit that is silently not there is worse than a
 * server that says what is wrong with its configuration.
 */
#include "server/client_rules.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    int64_t least, most;
} numbers[3] = {
    {"running", 1, 1000000}, {"waiting", 0, 1000000}, {"tokens_per_minute", 1, 1000000000000}};

bool client_name_good(const char *s, size_t n)
{
    if (n == 0 || n > CLIENT_NAME_MAX || (n == 3 && !memcmp(s, "all", 3)) ||
        (n == 5 && !memcmp(s, "other", 5)))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i]))
            return false;
    return true;
}

/* ---- one line ------------------------------------------------------------------------------ */

static int hex(int c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

static int read_digest(struct client_rule *rule, const char *s, struct err *err)
{
    size_t n = strlen(s);
    rule->kind = RULE_DIGEST;
    rule->digits = (int)n;
    for (size_t i = 0; i < n && n <= 2 * SHA256_BYTES; i++) {
        if (hex(s[i]) < 0)
            return err_set(err, "\"%.80s\" is no hexadecimal number", s);
        rule->bytes[i / 2] |= (unsigned char)(hex(s[i]) << (i % 2 ? 0 : 4));
    }
    if (n < 8 || n > 2 * SHA256_BYTES)
        return err_set(err, "sha256: wants 8 to 64 hexadecimal digits");
    return 0;
}

static int read_who(struct client_rule *rule, const char *s, struct err *err)
{
    size_t n = strlen(s);
    if (!strcmp(s, "*")) {
        rule->kind = RULE_ALL;
        return 0;
    }
    if (!strncmp(s, "sha256:", 7))
        return read_digest(rule, s + 7, err);
    /* What it says may be a key by mistake, so it is not repeated. */
    if (!client_name_good(s, n))
        return err_set(err,
                       "a line begins with the name of a key (letters, digits, - _ . and at "
                       "most %d of them), with sha256: and digits, or with *",
                       CLIENT_NAME_MAX);
    rule->kind = RULE_NAME;
    memcpy(rule->bytes, s, n);
    return 0;
}

static int read_number(struct client_rule *rule, const char *s, struct err *err)
{
    const char *eq = strchr(s, '=');
    for (int i = 0; eq && i < 3; i++) {
        if (strlen(numbers[i].name) != (size_t)(eq - s) ||
            strncmp(numbers[i].name, s, (size_t)(eq - s)))
            continue;
        if (rule->number[i] != RULE_UNSAID)
            return err_set(err, "%s is there twice", numbers[i].name);
        char *end;
        errno = 0;
        rule->number[i] = !strcmp(eq + 1, "any") ? RULE_ANY : strtoll(eq + 1, &end, 10);
        if (rule->number[i] == RULE_ANY && eq[1] == 'a')
            return 0;
        if (!isdigit((unsigned char)eq[1]) || *end || errno || rule->number[i] < numbers[i].least ||
            rule->number[i] > numbers[i].most)
            return err_set(err, "%s wants `any` or a whole number from %lld to %lld",
                           numbers[i].name, (long long)numbers[i].least,
                           (long long)numbers[i].most);
        return 0;
    }
    return err_set(err, "after who it is for come running=, waiting= and tokens_per_minute=");
}

/* Adds what the line says, if anything; the line is cut up. */
static int read_line(struct client_rules *r, char *text, int number, struct err *err)
{
    struct client_rule rule = {.number = {RULE_UNSAID, RULE_UNSAID, RULE_UNSAID}, .line = number};
    char *save = NULL;
    text[strcspn(text, "#")] = '\0';
    char *word = strtok_r(text, " \t\r\n", &save);
    if (!word)
        return 0;
    if (read_who(&rule, word, err))
        return -1;
    int said = 0;
    for (; (word = strtok_r(NULL, " \t\r\n", &save)); said++)
        if (read_number(&rule, word, err))
            return -1;
    if (said == 0)
        return err_set(err, "the line sets no limit");
    for (int i = 0; i < r->n; i++)
        if (r->rule[i].kind == rule.kind && r->rule[i].digits == rule.digits &&
            !memcmp(r->rule[i].bytes, rule.bytes, sizeof rule.bytes))
            return err_set(err, "line %d is for the same client", r->rule[i].line);
    r->rule = xrealloc(r->rule, (size_t)(r->n + 1) * sizeof *r->rule);
    r->rule[r->n++] = rule;
    return 0;
}

/* ---- all of them --------------------------------------------------------------------------- */

static int at_line(struct client_rules *r, char *text, int number, struct err *err)
{
    struct err what = {""};
    if (read_line(r, text, number, &what) == 0)
        return 0;
    return err_set(err, "%s line %d: %s", r->origin, number, what.msg);
}

static int read_list(struct client_rules *r, const char *value, struct err *err)
{
    char *list = xstrdup(value), *save = NULL;
    int rc = 0, number = 0;
    r->origin = "server.key_limits";
    for (char *s = strtok_r(list, ",", &save); s && rc == 0; s = strtok_r(NULL, ",", &save))
        rc = at_line(r, s, ++number, err);
    free(list);
    return rc;
}

static int read_file(struct client_rules *r, const char *path, struct err *err)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return err_set(err, "server.key_limits: cannot read %s: %s", path, strerror(errno));
    r->path = xasprintf("server.key_limits: %s", path);
    r->origin = r->path;
    char *line = NULL;
    size_t room = 0;
    int rc = 0, number = 0;
    while (rc == 0 && getline(&line, &room, f) >= 0)
        rc = at_line(r, line, ++number, err);
    if (rc == 0 && ferror(f))
        rc = err_set(err, "server.key_limits: cannot read %s: %s", path, strerror(errno));
    free(line);
    fclose(f);
    return rc;
}

int client_rules_read(struct client_rules *r, const char *value, struct err *err)
{
    *r = (struct client_rules){0};
    if (!value || !*value)
        return 0;
    int rc = (strchr(value, '=') ? read_list : read_file)(r, value, err);
    if (rc)
        client_rules_free(r);
    return rc;
}

void client_rules_free(struct client_rules *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->rule[i].client);
    free(r->rule);
    free(r->path);
    *r = (struct client_rules){0};
}

/* ---- what they say ------------------------------------------------------------------------- */

static bool same_name(const struct client_name *a, const struct client_name *b)
{
    return a->kind == b->kind && !memcmp(a->bytes, b->bytes, sizeof a->bytes);
}

static bool is_for(const struct client_rule *rule, const struct client_name *who)
{
    for (int i = 0; i < rule->clients; i++)
        if (same_name(&rule->client[i], who))
            return true;
    return false;
}

/* True if the line names the key: by its name, or by its digest. */
static bool names_key(const struct client_rule *rule, const struct client_name *who,
                      const unsigned char *digest)
{
    if (rule->kind == RULE_NAME)
        return who->kind == CLIENT_NAMED && !memcmp(rule->bytes, who->bytes, sizeof who->bytes);
    if (rule->kind != RULE_DIGEST)
        return false;
    int whole = rule->digits / 2;
    return !memcmp(rule->bytes, digest, (size_t)whole) &&
           (rule->digits % 2 == 0 || rule->bytes[whole] == (digest[whole] & 0xf0));
}

int client_rules_add_key(struct client_rules *r, const struct client_name *who,
                         const unsigned char *digest, struct err *err)
{
    for (int i = 0; i < r->n; i++) {
        struct client_rule *rule = &r->rule[i];
        if (!names_key(rule, who, digest) || is_for(rule, who))
            continue;
        for (int k = 0; k < r->n; k++)
            if (is_for(&r->rule[k], who))
                return err_set(err,
                               "%s line %d: line %d is for the same client: keys of one name have "
                               "their limits together",
                               r->origin, rule->line, r->rule[k].line);
        rule->client = xrealloc(rule->client, (size_t)(rule->clients + 1) * sizeof *rule->client);
        rule->client[rule->clients++] = *who;
    }
    return 0;
}

int client_rules_check(const struct client_rules *r, struct err *err)
{
    for (int i = 0; i < r->n; i++)
        if (r->rule[i].kind != RULE_ALL && r->rule[i].clients == 0)
            return err_set(err, "%s line %d: no key has this name, or this digest", r->origin,
                           r->rule[i].line);
    return 0;
}

struct client_limits client_rules_limits(const struct client_rules *r,
                                         const struct client_name *who)
{
    int64_t number[3] = {RULE_ANY, RULE_ANY, RULE_ANY};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->n; i++) {
            const struct client_rule *rule = &r->rule[i];
            if (pass ? !is_for(rule, who) : rule->kind != RULE_ALL)
                continue;
            for (int k = 0; k < 3; k++)
                if (rule->number[k] != RULE_UNSAID)
                    number[k] = rule->number[k];
        }
    return (struct client_limits){
        .requests = {.running = number[0] == RULE_ANY ? 0 : (int32_t)number[0],
                     .waiting = number[1] == RULE_ANY ? -1 : (int32_t)number[1]},
        .tokens_per_minute = number[2] == RULE_ANY ? 0 : number[2]};
}
