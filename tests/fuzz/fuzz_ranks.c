/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_ranks.c - any bytes as what a rank receives from another: frames off a socket, and in them
 * steps, kernels and what a rank died of. What is taken for a step lies within what the rank was
 * opened for, and says the same when it is packed again: two ranks that read it run the same, with
 * the same table.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/crash.h"
#include "engine/ranks_link.h"
#include "engine/ranks_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct wire_limits limits = {
    .max_tokens = 16, .max_rows = 4, .kv_pages = 9, .vocab = 50, .max_context = 48, .slots = 20};

enum { MOST = 1 << 14 };

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static void within(const int32_t *v, int32_t n, int64_t end)
{
    for (int32_t i = 0; i < n; i++)
        demand(v[i] >= 0 && v[i] < end);
}

/* What the attention of a step would read. */
static void spans_within(const struct step *s)
{
    int32_t tokens = 0;
    for (int32_t i = 0; i < s->spans; i++) {
        const struct span *p = &s->span[i];
        demand(p->first == tokens && p->count > 0 && p->context <= limits.max_context);
        tokens += p->count;
        within(s->page_table + p->pages_at, (p->context + KV_PAGE - 1) / KV_PAGE, limits.kv_pages);
        demand(p->pages_at + (p->context + KV_PAGE - 1) / KV_PAGE <= s->pages);
    }
    demand(tokens == s->m);
}

static void read_step(const struct link_message *m)
{
    struct step s;
    struct wire_table t;
    struct wire_buffer b = {0};
    if (wire_unpack(m->data, m->n, &limits, &s, &t, NULL) != 0)
        return;
    demand(m->n <= wire_most(&limits) && s.m > 0 && s.m <= limits.max_tokens);
    demand(s.rows >= 0 && s.rows <= limits.max_rows);
    within(s.tokens, s.m, limits.vocab);
    within(s.position, s.m, limits.max_context);
    within(s.kv_at, s.m, (int64_t)limits.kv_pages * KV_PAGE);
    within(s.row, s.rows, s.m);
    within(s.page_table, s.pages, limits.kv_pages);
    spans_within(&s);
    demand(t.trial_slot >= -1 && t.trial_slot < limits.slots);
    demand(t.trial_slot < 0 ? t.trial == 0 : t.trial > 0);
    demand(t.beside_run >= -1 && t.beside >= 0 && (t.beside_run >= 0 || t.beside == 0));
    for (int32_t i = 0; i < t.changes; i++) {
        within(&t.change[i].slot, 1, limits.slots);
        demand(t.change[i].kernel >= 0 && (i == 0 || t.change[i].slot > t.change[i - 1].slot));
    }
    wire_pack(&s, &t, &b);
    demand(b.n == m->n && memcmp(b.data, m->data, b.n) == 0);
    wire_buffer_free(&b);
}

static void read_kernel(const struct link_message *m)
{
    struct wire_kernel k;
    const char *bytes;
    if (wire_read_kernel(m->data, m->n, &k, &bytes, NULL) != 0)
        return;
    demand(k.number > 0 && k.region >= 0 && k.region < REGION_NODES);
    demand(k.layer >= 0 && k.layers >= 0);
    demand(strlen(k.id) < sizeof k.id && strlen(k.name) < sizeof k.name);
    demand(strlen(k.entry) < sizeof k.entry);
    demand(k.bytes > 0 && bytes + k.bytes == m->data + m->n);
}

static void read_timing(const struct link_message *m)
{
    struct wire_timing t;
    if (wire_read_timing(m->data, m->n, &limits, &t, NULL) != 0)
        return;
    demand(t.kernel >= 0 && t.m > 0 && t.m <= limits.max_tokens);
    demand(t.calls > 0 && t.calls <= TIMED_MOST);
}

/* What a rank says as it dies: bytes of a process in which something is broken. */
static void read_crash(const struct link_message *m)
{
    struct crash_record c;
    if (m->n != sizeof c)
        return;
    memcpy(&c, m->data, sizeof c);
    if (!crash_sound(&c))
        return;
    demand(c.n > 0 && c.n <= CRASH_KERNELS && strlen(c.what) < sizeof c.what);
    demand(!c.inside || c.n == 1);
    for (int32_t i = 0; i < c.n; i++)
        demand(strlen(c.kernel[i]) < sizeof c.kernel[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int end[2];
    struct link_message m;
    bool gone;
    if (size > 1 << 15) /* more than a socket takes while nobody reads */
        return 0;
    demand(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, end) == 0);
    demand(size == 0 || write(end[0], data, size) == (ssize_t)size);
    close(end[0]);
    int there = link_there(end[1], MOST);
    while (link_receive(end[1], MOST, 0, &m, &gone, NULL) == 0) {
        demand(there == LINK_WHOLE);
        demand(m.n <= MOST && m.kind >= LINK_JOIN && m.kind < LINK_KINDS);
        if (m.kind == LINK_STEP)
            read_step(&m);
        if (m.kind == LINK_LOAD)
            read_kernel(&m);
        if (m.kind == LINK_TIME)
            read_timing(&m);
        if (m.kind == LINK_CRASH)
            read_crash(&m);
        link_message_free(&m);
        there = link_there(end[1], MOST);
    }
    demand(m.data == NULL);
    close(end[1]);
    return 0;
}
