/* SPDX-License-Identifier: Apache-2.0 */
/* test_formats.c - format classes: which layers are alike, what they are called, how many count. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/dispatch.h"
#include "engine/formats.h"
#include "engine/quant.h"

enum { LAYERS = 8 };

/* Alike but for what a test changes. */
static struct model *uniform(void)
{
    static struct layer layer[LAYERS];
    static struct model m;
    m = (struct model){.shape = {.layers = LAYERS,
                                 .hidden = 256,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .ffn = 512,
                                 .vocab = 512},
                       .layer = layer,
                       .embed = {.rows = 512, .cols = 256, .type = DTYPE_Q6_K},
                       .head = {.rows = 512, .cols = 256, .type = DTYPE_Q6_K}};
    for (int i = 0; i < LAYERS; i++)
        layer[i] = (struct layer){.wq = {.rows = 256, .cols = 256, .type = DTYPE_Q4_K},
                                  .wk = {.rows = 128, .cols = 256, .type = DTYPE_Q4_K},
                                  .wv = {.rows = 128, .cols = 256, .type = DTYPE_Q4_K},
                                  .wo = {.rows = 256, .cols = 256, .type = DTYPE_Q4_K},
                                  .gate = {.rows = 512, .cols = 256, .type = DTYPE_Q4_K},
                                  .up = {.rows = 512, .cols = 256, .type = DTYPE_Q4_K},
                                  .down = {.rows = 256, .cols = 512, .type = DTYPE_Q4_K}};
    return &m;
}

/* As quantizers do it: v and down of layers 1, 4 and 5 have more bits. */
static struct model *mixed(void)
{
    static const int more[] = {1, 4, 5};
    struct model *m = uniform();
    for (int i = 0; i < 3; i++)
        m->layer[more[i]].wv.type = m->layer[more[i]].down.type = DTYPE_Q6_K;
    return m;
}

static void a_model_whose_layers_are_alike_shows_nothing_of_it(void **state)
{
    (void)state;
    struct formats *f = formats_open(uniform(), MACHINE_CPU);
    for (int r = 0; r < REGION_NODES; r++) {
        assert_int_equal(formats_classes(f, (enum region)r, 1), 1);
        assert_null(formats_class(f, (enum region)r, 1, 0));
        assert_int_equal(formats_beyond(f, (enum region)r, 1), 0);
        for (int32_t l = 0; l < LAYERS; l++)
            assert_int_equal(formats_place(f, (enum region)r, l, 1), r);
    }
    assert_null(class_of_layer(uniform(), MACHINE_CPU, REGION_MLP_OUT, 3, 1));
    assert_int_equal(class_runs(NULL, REGION_MLP_OUT, LAYERS), LAYERS);
    assert_int_equal(class_runs(NULL, REGION_REDUCE, LAYERS), 2 * LAYERS);
    assert_int_equal(class_layers(NULL, REGION_REDUCE, LAYERS), LAYERS);
    assert_int_equal(class_layers(NULL, REGION_HEAD, LAYERS), 1);
    formats_close(f);
}

static void layers_with_other_formats_are_other_classes(void **state)
{
    (void)state;
    struct formats *f = formats_open(mixed(), MACHINE_CPU);
    assert_int_equal(formats_classes(f, REGION_MLP_IN, 1), 1);
    assert_int_equal(formats_classes(f, REGION_MLP_OUT, 1), 2);
    assert_int_equal(formats_classes(f, REGION_MLP, 1), 0); /* no fused region of two classes */
    const struct format_class *q4 = formats_class(f, REGION_MLP_OUT, 1, 0),
                              *q6 = formats_class(f, REGION_MLP_OUT, 1, 1);
    assert_string_equal(q4->name, "q4_k"); /* five layers of it are more bytes than three of q6_k */
    assert_string_equal(q6->name, "q6_k");
    assert_int_equal(q4->layers, 5);
    assert_int_equal(q6->layers, 3);
    assert_int_equal(class_layer(q6, 0), 1);
    assert_int_equal(class_layer(q6, 2), 5);
    assert_int_equal(class_index(q6, 4), 1);
    assert_false(class_has(q6, 0));
    assert_true(class_has(q4, 0) && class_has(NULL, 0));
    assert_string_equal(formats_class(f, REGION_ATTN_IN, 1, 1)->name, "q4_k-q4_k-q6_k");
    assert_int_equal(formats_place(f, REGION_MLP_OUT, 0, 1), REGION_MLP_OUT);
    assert_int_equal(formats_place(f, REGION_MLP_OUT, 4, 1), REGION_NODES + REGION_MLP_OUT);
    assert_int_equal(place_region(formats_place(f, REGION_MLP_OUT, 4, 1)), REGION_MLP_OUT);
    assert_int_equal(formats_middle(f, REGION_MLP_OUT, 5, 1, LAYERS), 4);
    assert_ptr_equal(formats_find(f, REGION_MLP_OUT, 1, 3), q6);
    assert_null(formats_find(f, REGION_MLP_OUT, 0, 3));
    struct format_class *same = class_of_layer(mixed(), MACHINE_CPU, REGION_MLP_OUT, 5, 1);
    assert_string_equal(same->name, "q6_k");
    assert_int_equal(same->layers, 3);
    free(same);
    formats_close(f);
}

/* On a GPU q, k and v are one matrix; of several formats it is bf16. Wide steps may read copies. */
static void on_a_gpu_what_the_device_keeps_counts(void **state)
{
    (void)state;
    struct model *m = mixed();
    struct formats *f = formats_open(m, MACHINE_CUDA); /* that keeps bf16 */
    assert_int_equal(formats_classes(f, REGION_MLP_OUT, 1), 1);
    assert_int_equal(formats_classes(f, REGION_ATTN_IN, 1), 1);
    formats_close(f);
    m->own_formats = m->bf16_copies = true;
    f = formats_open(m, MACHINE_CUDA);
    assert_int_equal(formats_classes(f, REGION_MLP_OUT, OWN_MOST), 2);
    assert_string_equal(formats_class(f, REGION_ATTN_IN, 1, 0)->name, "q4_k");
    assert_string_equal(formats_class(f, REGION_ATTN_IN, 1, 1)->name, "bf16");
    assert_int_equal(formats_classes(f, REGION_MLP_OUT, OWN_MOST + 1), 1);
    assert_int_equal(formats_place(f, REGION_MLP_OUT, 4, OWN_MOST + 1), REGION_MLP_OUT);
    formats_close(f);
    for (int i = 0; i < LAYERS; i += 2)
        m->layer[i].down.type = DTYPE_F8;
    m->e4m3_products = true;
    f = formats_open(m, MACHINE_CUDA);
    assert_int_equal(formats_classes(f, REGION_MLP_OUT, E4M3_OVER), 1);
    assert_int_equal(formats_classes(f, REGION_MLP_OUT, E4M3_OVER + 1), 2);
    assert_int_equal(formats_classes(f, REGION_MLP_IN, E4M3_OVER + 1), 1);
    formats_close(f);
}

/* Six combinations: those with the fewest bytes have no slots. */
static void four_classes_have_slots_and_the_status_counts_the_others(void **state)
{
    (void)state;
    static const enum dtype of[LAYERS] = {DTYPE_Q2_K, DTYPE_F16,  DTYPE_Q8_0, DTYPE_Q3_K,
                                          DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_F16};
    struct model *m = uniform();
    for (int i = 0; i < LAYERS; i++)
        m->layer[i].down.type = (int32_t)of[i];
    struct formats *f = formats_open(m, MACHINE_CPU);
    static const char *const names[] = {"f16", "q4_k", "q8_0", "q6_k"};
    assert_int_equal(formats_classes(f, REGION_MLP_OUT, 1), FORMAT_CLASSES);
    for (int i = 0; i < FORMAT_CLASSES; i++)
        assert_string_equal(formats_class(f, REGION_MLP_OUT, 1, i)->name, names[i]);
    assert_int_equal(formats_beyond(f, REGION_MLP_OUT, 1), 2);
    int beyond = FORMAT_CLASSES * REGION_NODES + REGION_MLP_OUT;
    assert_int_equal(formats_place(f, REGION_MLP_OUT, 0, 1), beyond);
    assert_int_equal(formats_place(f, REGION_MLP_OUT, 3, 1), beyond);
    assert_in_range(beyond, 0, STEP_PLACES - 1);
    formats_close(f);
}

static void names_are_those_of_classes_and_nothing_else(void **state)
{
    (void)state;
    enum dtype t[3];
    static const char *const none[] = {"q4_k-q4_k-q4_k", "q4_k-q6_k", "Q4_K", "q4_k-q4_k-q6_k-f16",
                                       "q4_k-q4_k-",     "q9",        "",     "-"};
    assert_int_equal(formats_parse(REGION_ATTN_IN, "q4_k-q4_k-q6_k", t), 3);
    assert_int_equal(t[2], DTYPE_Q6_K);
    assert_int_equal(formats_parse(REGION_ATTN_IN, "q8_0", t), 3);
    assert_int_equal(t[2], DTYPE_Q8_0);
    assert_int_equal(formats_parse(REGION_MLP_OUT, "iq4_nl", t), 1);
    assert_int_equal(formats_parse(REGION_HEAD, "q6_k", t), 0);
    assert_int_equal(formats_parse(REGION_ATTN, "q6_k", t), 0);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(formats_parse(REGION_ATTN_IN, none[i], t), 0);
}

/* Every name fits its place, in a class and in a slot. */
static void the_longest_names_fit(void **state)
{
    (void)state;
    size_t longest = 0;
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strlen(dtype_name((enum dtype)t)) > longest)
            longest = strlen(dtype_name((enum dtype)t));
    assert_true(3 * longest + 2 < FORMAT_NAME);
    assert_true(strlen("attn_out/m2048/") + FORMAT_NAME <= sizeof((struct slot *)0)->name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_whose_layers_are_alike_shows_nothing_of_it),
        cmocka_unit_test(layers_with_other_formats_are_other_classes),
        cmocka_unit_test(on_a_gpu_what_the_device_keeps_counts),
        cmocka_unit_test(four_classes_have_slots_and_the_status_counts_the_others),
        cmocka_unit_test(names_are_those_of_classes_and_nothing_else),
        cmocka_unit_test(the_longest_names_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
