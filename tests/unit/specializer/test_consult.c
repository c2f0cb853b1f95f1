/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/consult.c and agent_view.c: what a language model is told of the kernel that
 * serves, while operators take it out.
 */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "specializer/agent_view.c"
#include "specializer/consult.c"
#include "tests/unit/specializer/shapes.h"

/* One slot whose kernel is asked about and one whose kernel is a lesson for it. */
struct world {
    struct specializer s;
    struct slot slot[2];
    struct slot_search search[2];
    struct kernel eager;
    struct agent_view view;
    struct told told;
    atomic_bool over;
};

static struct candidate *serving(struct world *w, double speed)
{
    struct candidate *c = xcalloc(1, sizeof *c);
    c->template = space_template(w->search[0].space, 0);
    space_point(w->search[0].space, 0, &c->point);
    c->evidence.speed = speed;
    snprintf(c->name, sizeof c->name, "of speed %.1f", speed);
    return c;
}

static struct world *open_world(void)
{
    static const struct facts f = {
        .REGION = REGION_ATTN_OUT, .M_MAX = 1, .SMS = 132, .HAS_CLUSTERS = 1, LLAMA_SHAPE};
    struct world *w = xcalloc(1, sizeof *w);
    w->eager = (struct kernel){.id = "eager", .name = "eager"};
    pthread_mutex_init(&w->s.lock, NULL);
    w->s.slot_search = w->search;
    w->s.slot_searches = 2;
    for (int i = 0; i < 2; i++) {
        w->slot[i] = (struct slot){.region = REGION_ATTN_OUT, .m_index = i, .kernel = &w->eager};
        snprintf(w->slot[i].name, sizeof w->slot[i].name, "attn_out/m%d", i + 1);
        w->search[i].slot = &w->slot[i];
    }
    w->search[0].space = space_open(&f, REGION_ATTN_OUT, 1, NUMERICS_TOLERANCE);
    search_open(&w->search[0].search, w->search[0].space);
    for (int i = 0; i < 2; i++)
        w->search[i].locked.active = serving(w, 1.5);
    return w;
}

static void close_world(struct world *w)
{
    for (int i = 0; i < 2; i++)
        free(w->search[i].locked.active);
    search_close(&w->search[0].search);
    space_close(w->search[0].space);
    pthread_mutex_destroy(&w->s.lock);
    agent_told_free(&w->told);
    free(w);
}

/* An operator replaces both kernels, slowly, while `tell` runs. */
static void replace_during(struct world *w, void *(*tell)(void *world))
{
    pthread_t thread;
    pthread_mutex_lock(&w->s.lock);
    assert_int_equal(pthread_create(&thread, NULL, tell, w), 0);
    usleep(50000);
    assert_false(atomic_load(&w->over)); /* or it has read what an operator is about to free */
    for (int i = 0; i < 2; i++) {
        free(w->search[i].locked.active);
        w->search[i].locked.active = serving(w, 2.5);
    }
    pthread_mutex_unlock(&w->s.lock);
    pthread_join(thread, NULL);
}

static void *tell_lessons(void *ctx)
{
    struct world *w = ctx;
    gather_lessons(&w->s, &w->search[0], &w->s.consultation);
    atomic_store(&w->over, true);
    return NULL;
}

static void a_lesson_is_of_the_kernel_that_serves(void **state)
{
    (void)state;
    struct world *w = open_world();
    replace_during(w, tell_lessons);
    assert_int_equal(w->s.consultation.request.lessons, 1);
    assert_string_equal(w->s.consultation.lesson[0].slot, "attn_out/m2");
    assert_true(w->s.consultation.lesson[0].speed == 2.5);
    close_world(w);
}

/* Such a kernel is at no point of any search, which others could try. */
static void a_kernel_of_a_language_model_is_no_lesson(void **state)
{
    (void)state;
    struct world *w = open_world();
    struct candidate *c = w->search[1].locked.active;
    c->template = agent_template(MACHINE_CPU, REGION_ATTN_OUT);
    assert_true(agent_point(c->template, space_facts(w->search[0].space), &c->point));
    gather_lessons(&w->s, &w->search[0], &w->s.consultation);
    assert_int_equal(w->s.consultation.request.lessons, 0);
    close_world(w);
}

/* Of few points all are among the fastest; there is no room for the slowest of the rest. */
static void the_slowest_of_none_are_none(void **state)
{
    (void)state;
    struct world *w = open_world();
    struct search *search = &w->search[0].search;
    search_learn(search, 0, 2);
    search_learn(search, 1, 1);
    int32_t id[2] = {0, 0};
    assert_int_equal(slowest(search, id + 1, 0), 0);
    assert_int_equal(id[0], 0);
    assert_int_equal(slowest(search, id, 1), 1);
    assert_int_equal(id[0], 1);
    close_world(w);
}

static void *tell_agent(void *ctx)
{
    struct world *w = ctx;
    agent_tell(&w->s, &w->search[0], &w->view, &w->told);
    atomic_store(&w->over, true);
    return NULL;
}

static void an_agent_is_told_of_the_kernel_that_serves(void **state)
{
    (void)state;
    struct world *w = open_world();
    replace_during(w, tell_agent);
    assert_non_null(strstr(w->told.serving, "`of speed 2.5`: 2.500"));
    assert_non_null(w->told.source);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lesson_is_of_the_kernel_that_serves),
        cmocka_unit_test(a_kernel_of_a_language_model_is_no_lesson),
        cmocka_unit_test(the_slowest_of_none_are_none),
        cmocka_unit_test(an_agent_is_told_of_the_kernel_that_serves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
