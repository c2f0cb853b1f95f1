/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_kernels.c - kernels and tables of several ranks: who loads what, who cannot, who
 * answers late, and the death of a rank in every state of a swap.
 *
 * The ranks are real processes. What stands in is the backend of the others, which "loads" a file
 * when it begins with the word "kernel", and the model: a step is a sum over all ranks of the
 * numbers of the kernels that each of them would run in slot 2. If they differ, the sum is not what
 * rank 0 expects.
 */
#include "tests/unit/unit.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/ranks.h"
#include "engine/ranks_link.h"
#include "engine/ranks_loader.h"

#define OBJECT "kernel\n"
#define OTHER "kerNEL\n"

enum { WORLD = 3, SLOT = 2, SLOTS = 20 };

/* In the order of a swap; NEVER: it does not die. */
enum state {
    ASKED,
    LOADED,
    ANSWERED,
    TOLD_TRIAL,
    TOLD_CHANGE,
    RAN_CHANGE,
    TOLD_BACK,
    UNLOADED,
    NEVER
};

static const struct wire_limits limits = {.max_tokens = 8,
                                          .max_rows = 4,
                                          .kv_pages = 16,
                                          .vocab = 100,
                                          .max_context = 64,
                                          .slots = SLOTS};

/* ---- another rank --------------------------------------------------------------------------- */

struct stand_in {
    struct ranks_options o;
    enum state dies;
    const char *refuses; /* every kernel, with these words */
    bool breaks;         /* every kernel that it has loaded */
    bool silent;         /* says nothing of the first kernel, until it is asked for the second */
    bool other_shape;
    bool twice;       /* answers twice */
    bool unasked;     /* answers before it is asked, after its first step */
    bool other_bytes; /* takes another object than the one that came */
    bool no_file;     /* of the object is there any more when it is asked to load it */
    const char *file;
    bool no_memory; /* for the object, when it is to be loaded */
};

static struct stand_in *self; /* of this process */
static _Atomic int unloads;

static void pass(enum state s)
{
    if (self->dies == s)
        raise(SIGKILL);
}

static struct kernel *load(struct backend *b, const struct kernel_object *o, struct err *err)
{
    char text[16] = "";
    FILE *f = fopen(o->path, "re");
    (void)b;
    if (!f || !fgets(text, sizeof text, f) || strncmp(text, "kernel", 6) != 0 || self->refuses) {
        err_set(err, "%s", self->refuses ? self->refuses : "is no kernel");
        if (f)
            fclose(f);
        return NULL;
    }
    fclose(f);
    struct kernel *k = xcalloc(1, sizeof *k);
    k->region = o->region;
    pass(LOADED);
    return k;
}

static void unload(struct backend *b, struct kernel *k)
{
    (void)b;
    free(k);
    atomic_fetch_add(&unloads, 1);
    pass(UNLOADED);
}

static const char *broken(struct backend *b, const struct kernel *k)
{
    (void)b;
    (void)k;
    return self->breaks ? "it hangs" : NULL;
}

static int sum_up(struct collective *c, float number, struct err *e)
{
    float sum = number;
    if (c->ops->all_reduce(c, &sum, &sum, 1, NULL, e))
        return -1;
    return sum == number * (float)c->world ? 0
                                           : err_set(e, "the ranks ran kernels of sum %g, not %g",
                                                     (double)sum, (double)number * c->world);
}

static int open_world(struct ranks_options *o, bool other_shape, struct ranks **r,
                      struct collective **c, struct err *e)
{
    struct wire_part part = {.hash = "0123456789abcdef", .backend = "cpu"};
    struct wire_setup setup = {.kv_pages = 10, .max_tokens = 8, .max_rows = 4};
    part.shape[REGION_MLP_IN] = other_shape ? 2 : 1;
    if (!(*r = ranks_open(o, e)) || (o->place.rank && ranks_hear_wish(*r, &setup, e)) ||
        ranks_agree(*r, &backend_cpu, &part, &setup, e))
        return -1;
    return (*c = ranks_collective(*r, &backend_cpu, &setup, e)) ? ranks_begin(*r, e) : -1;
}

/* The number of the kernel that the step is to run in SLOT, which must be here. */
static int run_step(struct ranks *r, struct loader *l, const struct ranks_order *o,
                    struct collective *c, int32_t *in_slot, struct err *e)
{
    const struct wire_table *t = &o->table;
    if (t->trial)
        pass(TOLD_TRIAL);
    for (int32_t i = 0; i < t->changes; i++) {
        *in_slot = t->change[i].kernel;
        pass(*in_slot ? TOLD_CHANGE : TOLD_BACK);
    }
    int32_t number = t->trial ? t->trial : *in_slot;
    if (number && !loader_kernel(l, number))
        return err_set(e, "kernel %d is not here", number);
    if (sum_up(c, (float)number, e))
        return -1;
    if (t->changes)
        ranks_ran_with(r, t);
    if (t->changes && *in_slot)
        pass(RAN_CHANGE);
    return 0;
}

static void asked_for(struct ranks *r, struct loader *l, const struct ranks_order *o)
{
    pass(ASKED);
    if (self->silent && o->kernel.number == 1)
        return;
    if (self->silent)
        ranks_loaded(r, 1, NULL); /* of what nobody waits for any more */
    if (self->twice)
        ranks_loaded(r, o->kernel.number, NULL);
    if (self->no_file)
        unlink(self->file);
    if (self->no_memory)
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3}), 0);
    loader_load(l, &o->kernel, self->other_bytes ? OTHER : o->bytes);
    while (self->dies == ANSWERED) { /* however long it takes to load */
        usleep(1000);
        if (loader_kernel(l, o->kernel.number)) {
            usleep(100000);
            pass(ANSWERED);
        }
    }
}

static int follow(struct err *e)
{
    struct backend_ops ops = {.load = load, .unload = unload, .broken = broken};
    struct ranks *r = NULL;
    struct collective *c;
    struct ranks_order o;
    int32_t in_slot = 0;
    int rc = open_world(&self->o, self->other_shape, &r, &c, e);
    struct loader *l = rc == 0 ? loader_open(r, &ops, NULL, NULL, e) : NULL;
    while (rc == 0 && (rc = ranks_next(r, &limits, &o, e)) > ORDER_END) {
        if (rc == ORDER_LOAD)
            asked_for(r, l, &o);
        else if (rc == ORDER_UNLOAD)
            loader_unload(l, o.number);
        rc = rc == ORDER_STEP ? run_step(r, l, &o, c, &in_slot, e) : 0;
        if (self->unasked)
            ranks_loaded(r, 1, NULL);
    }
    if (rc && r)
        ranks_give_up(r, e->msg);
    loader_close(l);
    ranks_close(r);
    return rc;
}

/* ---- rank 0 --------------------------------------------------------------------------------- */

struct world {
    struct ranks *r;
    struct collective *c;
    pid_t pid[WORLD];
    char path[64], lost[300];
    _Atomic bool told;
    struct err e;
};

static void on_lost(void *ctx, const char *why)
{
    struct world *w = ctx;
    snprintf(w->lost, sizeof w->lost, "%s", why);
    atomic_store(&w->told, true);
}

static struct stand_in stand_in(int32_t rank)
{
    return (struct stand_in){
        .o = {.place = {rank, WORLD, rank, "127.0.0.1", 0, -1, "test"},
              .join_timeout_s = 120,
              .step_timeout_s = 120},
        .dies = NEVER,
    };
}

/* A world whose rank 1 is `one`. */
static void open_all(struct world *w, struct stand_in one, double timeout_s)
{
    struct stand_in zero = stand_in(0), two = stand_in(2);
    *w = (struct world){.r = NULL};
    snprintf(w->path, sizeof w->path, "/tmp/whet-test-kernel-XXXXXX");
    int fd = mkstemp(w->path);
    assert_int_equal(write(fd, OBJECT, strlen(OBJECT)), strlen(OBJECT));
    close(fd);
    zero.o.step_timeout_s = timeout_s;
    zero.o.on_lost = on_lost;
    zero.o.ctx = w;
    bool everywhere;
    zero.o.place.listener = link_listen("127.0.0.1", &zero.o.place.port, &everywhere, &w->e);
    one.o.place.port = two.o.place.port = zero.o.place.port;
    struct stand_in *other[] = {NULL, &one, &two};
    for (int i = 1; i < WORLD; i++)
        if ((w->pid[i] = fork()) == 0) {
            struct err e = {""};
            self = other[i];
            self->file = w->path;
            close(zero.o.place.listener);
            _exit(follow(&e) ? 1 : 0);
        }
    if (open_world(&zero.o, false, &w->r, &w->c, &w->e))
        fail_msg("%s", w->e.msg);
}

static int ended(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* With which status the others end. */
static void close_all(struct world *w, bool well)
{
    ranks_close(w->r);
    for (int i = 1; i < WORLD; i++)
        assert_true((ended(w->pid[i]) == 0) == well);
    unlink(w->path);
}

static int ask_for(struct world *w, enum region region, const struct format_class *formats,
                   int32_t *number)
{
    struct kernel_object o = {.path = w->path,
                              .region = region,
                              .formats = formats,
                              .origin = ORIGIN_TEMPLATE,
                              .id = "id",
                              .name = "toy"};
    w->e = (struct err){""};
    return ranks_load(w->r, &o, number, &w->e);
}

static int ask(struct world *w, enum region region, int32_t *number)
{
    return ask_for(w, region, NULL, number);
}

enum { SAME = -1 };
/* A step with this trial (0: none), after the slot was given that kernel (SAME: not). */
static int step(struct world *w, int32_t trial, int32_t in_slot)
{
    static int32_t token[1] = {1}, position[1] = {3}, at[1] = {35}, page[1] = {2};
    static struct span span = {0, 1, 4, 0};
    static int32_t there;
    struct wire_change change = {SLOT, in_slot};
    struct wire_table t = {.trial_slot = trial ? SLOT : -1,
                           .trial = trial,
                           .changes = in_slot != SAME,
                           .change = &change};
    struct step s = {.m = 1,
                     .spans = 1,
                     .pages = 1,
                     .context = 4,
                     .tokens = token,
                     .position = position,
                     .kv_at = at,
                     .span = &span,
                     .page_table = page};
    there = in_slot != SAME ? in_slot : ranks_version(w->r, 0) ? there : 0;
    w->e = (struct err){""};
    int rc =
        ranks_send_step(w->r, &s, &t, &w->e) || sum_up(w->c, (float)(trial ? trial : there), &w->e)
            ? -1
            : 0;
    ranks_step_ran(w->r);
    return rc;
}

static void wait_version(struct world *w, int64_t version)
{
    for (int32_t i = 0; i < WORLD; i++)
        while (ranks_version(w->r, i) != version) {
            assert_false(w->told);
            usleep(1000);
        }
}

static void assert_words(const char *words, const char *in)
{
    if (!strstr(in, words))
        fail_msg("'%s' is not in: %s", words, in);
}

/* ---- a swap ---------------------------------------------------------------------------------- */

static void a_kernel_is_tried_published_and_taken_back_on_all_ranks_at_one_step(void **state)
{
    (void)state;
    struct world w;
    int32_t number, second;
    open_all(&w, stand_in(1), 120);
    assert_int_equal(step(&w, 0, SAME), 0);
    if (ask(&w, REGION_MLP_IN, &number))
        fail_msg("%s", w.e.msg);
    assert_int_equal(step(&w, 0, SAME), 0);
    assert_int_equal(step(&w, number, SAME), 0);
    assert_int_equal(step(&w, 0, SAME), 0);
    wait_version(&w, 0);
    assert_int_equal(step(&w, 0, number), 0);
    wait_version(&w, 1);
    assert_int_equal(step(&w, 0, SAME), 0);
    assert_int_equal(ask(&w, REGION_MLP_IN, &second), 0);
    assert_true(second > number);
    assert_int_equal(step(&w, second, SAME), 0);
    assert_int_equal(step(&w, 0, second), 0);
    ranks_unload(w.r, number);
    assert_int_equal(step(&w, 0, 0), 0);
    wait_version(&w, 3);
    ranks_unload(w.r, second);
    assert_int_equal(step(&w, 0, SAME), 0);
    assert_false(w.told);
    close_all(&w, true);
}

/* Repacking the weights of all layers instead would be wrong. */
static void class_that_a_rank_has_not_is_refused(void **state)
{
    (void)state;
    struct world w;
    int32_t number;
    struct format_class *few = xcalloc(1, sizeof *few + sizeof few->layer[0]);
    few->layers = 1;
    few->layer[0] = 3;
    open_all(&w, stand_in(1), 120);
    assert_int_equal(step(&w, 0, SAME), 0);
    assert_int_equal(ask_for(&w, REGION_MLP_OUT, few, &number), -1);
    assert_words("for 1 layers of mlp_out from layer 3 on, which are no class here", w.e.msg);
    assert_int_equal(step(&w, 0, SAME), 0);
    close_all(&w, true);
    free(few);
}

static void what_one_rank_cannot_load_is_nowhere(void **state)
{
    (void)state;
    struct world w;
    struct stand_in one = stand_in(1);
    int32_t number;
    one.refuses = "no memory for repacked weights";
    open_all(&w, one, 120);
    assert_int_equal(ask(&w, REGION_MLP_IN, &number), -1);
    assert_words("rank 1: no memory for repacked weights", w.e.msg);
    assert_false(w.e.outside);
    assert_int_equal(step(&w, 0, SAME), 0);       /* and all goes on */
    assert_int_equal(step(&w, number, SAME), -1); /* rank 2 has it no more, or had it taken back */
    close_all(&w, false);
}

/* What was proved is not there. */
static void an_object_that_is_another_one_is_refused(void **state)
{
    (void)state;
    struct world w;
    struct stand_in one = stand_in(1);
    int32_t number;
    one.other_bytes = true;
    open_all(&w, one, 120);
    assert_int_equal(ask(&w, REGION_MLP_IN, &number), -1);
    assert_words("the object that came for toy is not the one that rank 0 has", w.e.msg);
    assert_int_equal(step(&w, 0, SAME), 0);
    assert_false(w.told);
    close_all(&w, true);
}

/* A pod beside rank 0's has other files, and the machine's boot id all the same. */
static void a_rank_that_sees_no_file_of_rank_0_loads_the_kernel(void **state)
{
    (void)state;
    struct world w;
    struct stand_in one = stand_in(1);
    int32_t number;
    one.no_file = true;
    open_all(&w, one, 120);
    if (ask(&w, REGION_MLP_IN, &number))
        fail_msg("%s", w.e.msg);
    assert_int_equal(step(&w, number, SAME), 0);
    close_all(&w, true);
}

static void what_a_rank_has_no_place_for_is_no_worse_for_it(void **state)
{
    (void)state;
    struct world w;
    struct stand_in one = stand_in(1);
    int32_t number;
    one.no_memory = true;
    open_all(&w, one, 120);
    assert_int_equal(ask(&w, REGION_MLP_IN, &number), -1);
    assert_words("rank 1: no memory for a kernel of 7 bytes", w.e.msg);
    assert_true(w.e.outside);
    assert_int_equal(step(&w, 0, SAME), 0);
    close_all(&w, true);
}

static void a_rank_that_does_not_answer_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    struct world w;
    struct stand_in one = stand_in(1);
    int32_t first, second;
    one.silent = true;
    open_all(&w, one, 3);
    assert_int_equal(ask(&w, REGION_MLP_IN, &first), -1);
    assert_words("rank 1 did not say within 3.0 s", w.e.msg);
    assert_true(w.e.outside);
    /* Its answer to the first comes now, late, and counts for nothing. */
    if (ask(&w, REGION_MLP_IN, &second))
        fail_msg("%s", w.e.msg);
    assert_int_equal(step(&w, second, SAME), 0);
    assert_int_equal(step(&w, 0, second), 0);
    assert_false(w.told);
    close_all(&w, true);
}

static void answers_that_make_no_sense_end_the_world(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct world w;
        struct stand_in one = stand_in(1);
        int32_t number;
        one.twice = i == 0;
        one.unasked = i == 1;
        open_all(&w, one, 120);
        if (one.unasked)
            step(&w, 0, SAME);
        else
            ask(&w, REGION_MLP_IN, &number);
        while (!w.told)
            usleep(1000);
        assert_words("rank 1", w.lost);
        assert_words("said something unexpected", w.lost);
        close_all(&w, false);
    }
}

static void a_kernel_that_breaks_on_a_rank_is_known_to_rank_0(void **state)
{
    (void)state;
    struct world w;
    struct stand_in one = stand_in(1);
    int32_t number;
    one.breaks = true;
    open_all(&w, one, 120);
    assert_int_equal(ask(&w, REGION_MLP_IN, &number), 0);
    assert_int_equal(step(&w, 0, number), 0);
    const char *why;
    while (!(why = ranks_broke(w.r, number)))
        usleep(1000);
    assert_words("rank 1: it hangs", why);
    assert_null(ranks_broke(w.r, number + 1));
    assert_int_equal(step(&w, 0, 0), 0); /* which takes it back on all */
    wait_version(&w, 2);
    close_all(&w, true);
}

static void a_region_of_another_shape_on_a_rank_takes_no_kernel(void **state)
{
    (void)state;
    struct world w;
    struct stand_in one = stand_in(1);
    int32_t number;
    one.other_shape = true;
    open_all(&w, one, 120);
    assert_int_equal(ranks_unequal(w.r, REGION_MLP_IN), 1);
    assert_int_equal(ranks_unequal(w.r, REGION_HEAD), 0);
    assert_int_equal(ask(&w, REGION_MLP_IN, &number), -1);
    assert_words("rank 1 has another shape", w.e.msg);
    assert_true(w.e.outside); /* it may do for other ranks */
    assert_int_equal(ask(&w, REGION_HEAD, &number), 0);
    close_all(&w, true);
}

/* Whatever it was at: rank 0 comes back with an error that names it, and rank 2 ends. */
static void a_rank_may_die_in_any_state_of_a_swap(void **state)
{
    (void)state;
    for (enum state dies = ASKED; dies < NEVER; dies++) {
        struct world w;
        struct stand_in one = stand_in(1);
        int32_t number = 0;
        one.dies = dies;
        open_all(&w, one, 120);
        int rc = step(&w, 0, SAME) || ask(&w, REGION_MLP_IN, &number) || step(&w, number, SAME) ||
                 step(&w, 0, number) || step(&w, 0, SAME) || step(&w, 0, 0);
        if (rc == 0) {
            ranks_unload(w.r, number);
            while (!w.told)
                usleep(1000);
        }
        for (int i = 0; !w.told && i < 60000; i++)
            usleep(1000);
        if (dies < TOLD_BACK && rc == 0)
            fail_msg("state %d: all went well", dies);
        if (!strstr(w.lost, "rank 1") && !strstr(w.lost, "another rank"))
            fail_msg("state %d: %s; %s", dies, w.lost, w.e.msg);
        close_all(&w, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_is_tried_published_and_taken_back_on_all_ranks_at_one_step),
        cmocka_unit_test(class_that_a_rank_has_not_is_refused),
        cmocka_unit_test(what_one_rank_cannot_load_is_nowhere),
        cmocka_unit_test(an_object_that_is_another_one_is_refused),
        cmocka_unit_test(a_rank_that_sees_no_file_of_rank_0_loads_the_kernel),
        cmocka_unit_test(what_a_rank_has_no_place_for_is_no_worse_for_it),
        cmocka_unit_test(a_rank_that_does_not_answer_is_not_waited_for_for_ever),
        cmocka_unit_test(answers_that_make_no_sense_end_the_world),
        cmocka_unit_test(a_kernel_that_breaks_on_a_rank_is_known_to_rank_0),
        cmocka_unit_test(a_region_of_another_shape_on_a_rank_takes_no_kernel),
        cmocka_unit_test(a_rank_may_die_in_any_state_of_a_swap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
