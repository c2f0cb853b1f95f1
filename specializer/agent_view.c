/* SPDX-License-Identifier: Apache-2.0 */
/* agent_view.c - see agent_view.h. What must be beaten is shown as it is compiled: the template's
 * source and those of its headers that the frame of a text does not bring along anyway. */
#include "specializer/agent_view.h"

#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_header.h"
#include "specializer/agent/agent_source.h"
#include "specializer/build/build.h"
#include "specializer/candidate/template_tables.h"
#include "specializer/specializer_private.h"

enum { SOURCE_MOST = 40 * 1024, HEADERS_MOST = 40, BEST = 6, WORST = 3 };

/* ---- sources ------------------------------------------------------------------------------- */

struct headers {
    char name[HEADERS_MOST][80];
    int n;
};

static bool add_header(struct headers *h, const char *name, size_t n)
{
    for (int i = 0; i < h->n; i++)
        if (strlen(h->name[i]) == n && memcmp(h->name[i], name, n) == 0)
            return false;
    if (h->n == HEADERS_MOST || n >= sizeof h->name[0])
        return false;
    snprintf(h->name[h->n++], sizeof h->name[0], "%.*s", (int)n, name);
    return true;
}

/* Adds what `text` includes in quotes, and what that includes, each once. */
static void add_included(struct headers *h, const char *text)
{
    static const char word[] = "#include \"";
    for (const char *at = strstr(text, word); at; at = strstr(at, word)) {
        at += strlen(word);
        if (add_header(h, at, strcspn(at, "\"\n")))
            add_included(h, kernel_source_text(h->name[h->n - 1]));
    }
}

/* Whether a header has nothing to say here: tables of knobs, and what other processors run. */
static bool is_of_no_use(const char *header, int32_t isa)
{
    return strstr(header, ".def") || agent_header_is_of_others(header, isa);
}

/* Whether a header is one that the text includes itself, or a part of one: of "cpu/lib/wide.h"
 * there are "cpu/lib/wide_tiles.h" and others. */
static bool is_main(const char *text, const char *header)
{
    static const char word[] = "#include \"";
    for (const char *at = strstr(text, word); at; at = strstr(at, word)) {
        at += strlen(word);
        const size_t stem = strcspn(at, ".\"\n");
        if (strncmp(header, at, stem) == 0 && (header[stem] == '.' || header[stem] == '_'))
            return true;
    }
    return false;
}

/* What was written of a template's source. */
struct shown {
    FILE *f;
    int32_t isa;
    size_t bytes;
    struct headers left_out;
};

static void put_header(struct shown *s, const char *name)
{
    char *text = agent_header(kernel_source_text(name), s->isa);
    const bool fits = s->bytes + strlen(text) <= SOURCE_MOST;
    if (fits) {
        fprintf(s->f, "\n/* ---- %s */\n%s", name, text);
        s->bytes += strlen(text);
    } else {
        strcpy(s->left_out.name[s->left_out.n++], name);
    }
    free(text);
}

/* The headers that the frame of a text does not bring along anyway, as many as fit: the main ones
 * first, in which the loops are. */
static void put_headers(struct shown *s, const struct template *t, const struct headers *all,
                        int known)
{
    for (int main = 1; main >= 0; main--)
        for (int i = known; i < all->n; i++)
            if (!is_of_no_use(all->name[i], s->isa) &&
                is_main(template_source(t), all->name[i]) == main)
                put_header(s, all->name[i]);
    for (int i = 0; i < s->left_out.n; i++)
        fprintf(s->f, "%s%s%s", i ? ", " : "\n/* ---- left out, too long: ", s->left_out.name[i],
                i + 1 == s->left_out.n ? " */\n" : "");
}

char *agent_template_text(const struct template *t, int32_t isa)
{
    struct headers *frame = xcalloc(1, sizeof *frame), *all = xcalloc(1, sizeof *all);
    const struct template *a = agent_template(t->machine, (enum region)t->region);
    char *out = NULL, *source = agent_header(template_source(t), isa);
    size_t size = 0;
    struct shown *s = xcalloc(1, sizeof *s);
    *s = (struct shown){.f = xmemstream(&out, &size), .isa = isa, .bytes = strlen(source)};
    add_included(frame, a ? template_source(a) : "");
    *all = *frame;
    const int known = all->n;
    add_included(all, template_source(t));
    fprintf(s->f,
            "\nIts source, `%s`, and headers that it brings along; the names of its knobs are "
            "macros\nwith the values above:\n```c\n%s",
            t->id, source);
    put_headers(s, t, all, known);
    fputs("```\n", s->f);
    fclose(s->f);
    free(s);
    free(source);
    free(frame);
    free(all);
    return out;
}

/* ---- what serves, and what was measured ---------------------------------------------------- */

static void put_evidence(FILE *f, const struct candidate *c)
{
    const struct evidence *e = &c->evidence;
    fprintf(f, "`%s`: ", c->name);
    if (e->speed > 0)
        fprintf(f, "%.3f", e->speed);
    else
        fputs("speed not measured since the restart", f);
    if (e->bench.pairs > 0)
        fprintf(f, "; in its bench %+.1f %% [%+.1f, %+.1f] over the kernel before it, %d pairs",
                e->bench.mean * 100, e->bench.low * 100, e->bench.high * 100, e->bench.pairs);
    if (e->own_s > 0)
        fprintf(f, ", %.4g us a run then", e->own_s * 1e6);
    if (e->own_s > 0 && e->speed > 0)
        fprintf(f, " (eager: %.4g)", e->own_s * e->speed * 1e6);
    if (e->canary.pairs > 0)
        fprintf(f, "; whole steps %+.1f %% [%+.1f, %+.1f]", e->canary.mean * 100,
                e->canary.low * 100, e->canary.high * 100);
}

/* `c`: a copy of what serves, or NULL for eager. */
static char *serving_text(const struct candidate *c)
{
    char *out = NULL;
    size_t size = 0;
    FILE *f = xmemstream(&out, &size);
    if (c)
        put_evidence(f, c);
    else
        fputs("the eager kernel: 1", f);
    fclose(f);
    return out;
}

static void put_point(FILE *f, const struct search *s, int32_t id)
{
    const struct template *t = space_template(s->space, id);
    struct point point;
    space_point(s->space, id, &point);
    fprintf(f, "- %.3f: `%s", (double)s->speed[id], t->id);
    for (int k = 0; k < t->knobs; k++)
        fprintf(f, " %s=%d", t->knob[k].name, point.value[k]);
    fputs("`\n", f);
}

/* The slowest measured ids, slowest first. */
static int slowest(const struct search *s, int32_t *id, int n)
{
    int found = 0;
    for (int32_t i = 0; n > 0 && i < space_size(s->space); i++) {
        if (s->trial[i] != TRIAL_MEASURED || (found == n && s->speed[i] >= s->speed[id[n - 1]]))
            continue;
        int at = found < n ? found++ : n - 1;
        for (; at > 0 && s->speed[id[at - 1]] > s->speed[i]; at--)
            id[at] = id[at - 1];
        id[at] = i;
    }
    return found;
}

static char *tuned_text(struct specializer *s, struct slot_search *p)
{
    int32_t best[BEST], worst[WORST];
    if (!slot_search_open(s, p) || p->search.measured == 0) /* what the store holds counts, too */
        return NULL;
    char *out = NULL;
    size_t size = 0;
    FILE *f = xmemstream(&out, &size);
    int n = search_best(&p->search, best, BEST), last = p->search.measured - n;
    for (int i = 0; i < n; i++)
        put_point(f, &p->search, best[i]);
    n = slowest(&p->search, worst, last < WORST ? last : WORST);
    fputs(n > 0 ? "and the slowest:\n" : "", f);
    for (int i = 0; i < n; i++)
        put_point(f, &p->search, worst[i]);
    fclose(f);
    return out;
}

static char *compiler_text(const struct compiler *c, int isa)
{
    char *out = NULL;
    size_t size = 0;
    if (target_of(c->machine)->compiler_library)
        return xasprintf("%s %s", c->version, c->arch);
    FILE *f = xmemstream(&out, &size);
    fprintf(f, "%s:", c->version);
    for (const char *const *flag = build_flags; *flag; flag++)
        fprintf(f, " %s", *flag);
    fprintf(f, " %s", isa_flags(isa));
    fclose(f);
    return out;
}

/* The instruction set that a kernel is compiled for; -1: it is of no CPU. */
static int32_t isa_of(const struct candidate *c)
{
    const bool has = template_role(c->template, ROLE_ISA) >= 0;
    return has ? role_value(c->template, &c->point, ROLE_ISA) : -1;
}

void agent_tell(struct specializer *s, struct slot_search *p, struct agent_view *v,
                struct told *out)
{
    struct candidate copy;
    const struct candidate *c = slot_search_serving(s, p, &copy) ? &copy : NULL;
    *out = (struct told){
        .compiler = compiler_text(&s->compiler, v->isa),
        .serving = serving_text(c),
        .source = c && !c->body[0] && !c->template->library
                      ? agent_template_text(c->template, isa_of(c))
                      : NULL,
        .tuned = tuned_text(s, p),
    };
    v->compiler = out->compiler;
    v->serving = out->serving;
    v->source = out->source;
    v->tuned = out->tuned;
}

void agent_told_free(struct told *t)
{
    free(t->compiler);
    free(t->serving);
    free(t->source);
    free(t->tuned);
}

/* ---- trials -------------------------------------------------------------------------------- */

void agent_trial_words(const struct specializer *s, const struct candidate *c, char *out, size_t n)
{
    const struct evidence *e = &c->evidence;
    const char *words =
        target_of(c->template->machine)->compiler_counts_registers ? candidate_words(c) : NULL;
    const char *registers = words ? strstr(words, " registers, ") : NULL;
    size_t at = 0;
    out[0] = 0;
    if (e->bench.pairs == 0 || e->own_s <= 0)
        return;
    int64_t bytes = 0;
    const struct slot_search *p = slot_search_find((struct specializer *)s, c->slot->name);
    if (p)
        bytes = (int64_t)observe_bytes(&s->observe, p->index);
    at += (size_t)snprintf(out + at, n - at, "%.4g us a run", e->own_s * 1e6);
    if (bytes > 0 && at < n)
        at += (size_t)snprintf(out + at, n - at, ", %.1f GB/s", (double)bytes / e->own_s * 1e-9);
    if (e->warm_s > 0 && e->warm_base_s > 0 && at < n)
        at += (size_t)snprintf(out + at, n - at,
                               "; on warm weights %.4g us, the kernel that served then %.4g us",
                               e->warm_s * 1e6, e->warm_base_s * 1e6);
    if (at < n)
        at += (size_t)snprintf(out + at, n - at,
                               "; %+.1f %% [%+.1f, %+.1f] against the kernel that served then",
                               e->bench.mean * 100, e->bench.low * 100, e->bench.high * 100);
    while (registers && registers > words && registers[-1] >= '0' && registers[-1] <= '9')
        registers--;
    if (registers && at < n)
        snprintf(out + at, n - at, "; %.*s", (int)strcspn(registers, ","), registers);
}
