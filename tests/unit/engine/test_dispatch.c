/* SPDX-License-Identifier: Apache-2.0 */
/* test_dispatch.c - slots: lookup, publishing, epochs, fingerprint. */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <string.h>

#include "engine/dispatch.h"

static struct kernel eager[REGION_COUNT];
static struct dispatch *open_table(void)
{
    const struct kernel *k[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++) {
        strcpy(eager[r].id, "eager");
        eager[r].region = (enum region)r;
        k[r] = &eager[r];
    }
    return dispatch_open(k, NULL);
}

static void every_slot_starts_with_its_regions_eager_kernel(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    assert_int_equal(dispatch_slots(d), 6 * M_BUCKETS + M_BUCKETS * CONTEXT_BUCKETS);
    for (int i = 0; i < dispatch_slots(d); i++) {
        struct slot *s = dispatch_slot_at(d, i);
        assert_ptr_equal(atomic_load(&s->kernel), &eager[s->region]);
        assert_ptr_equal(dispatch_find(d, s->name), s);
    }
    dispatch_close(d);
}

static void a_size_goes_to_the_smallest_bucket_that_holds_it(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    assert_string_equal(dispatch_slot(d, REGION_MLP_IN, 0, 1, 99)->name, "mlp_in/m1");
    assert_string_equal(dispatch_slot(d, REGION_MLP_IN, 0, 5, 99)->name, "mlp_in/m6");
    assert_string_equal(dispatch_slot(d, REGION_HEAD, 0, 65, 99)->name, "head/m128");
    assert_string_equal(dispatch_slot(d, REGION_ATTN, 0, 1, 256)->name, "attn/m1/c256");
    assert_string_equal(dispatch_slot(d, REGION_ATTN, 0, 8, 257)->name, "attn/m8/c512");
    assert_string_equal(dispatch_slot(d, REGION_ATTN, 0, 9999, 999999)->name, "attn/m2048/c131072");
    assert_null(dispatch_find(d, "mlp_in/m5"));
    dispatch_close(d);
}

static void fused_regions_have_slots_for_few_tokens_where_they_are_asked_for(void **state)
{
    (void)state;
    static struct kernel own[REGION_NODES], fused = {.id = "fused", .m_max = 3};
    const struct kernel *k[REGION_NODES];
    struct dispatch *plain = open_table();
    for (int r = 0; r < REGION_NODES; r++)
        k[r] = &own[r];
    struct dispatch *d = dispatch_open_fused(k, NULL);
    struct slot *s = dispatch_slot(d, REGION_MLP, 0, 3, 99);
    assert_string_equal(s->name, "mlp/m3");
    assert_ptr_equal(s->eager, &own[REGION_MLP]);
    assert_ptr_equal(dispatch_find(d, "mlp/m16"), dispatch_slot(d, REGION_MLP, 0, 13, 0));
    assert_null(dispatch_slot(d, REGION_MLP, 0, 17, 0));
    assert_null(dispatch_find(d, "mlp/m24"));
    assert_null(dispatch_slot(plain, REGION_MLP, 0, 1, 0));
    assert_null(dispatch_find(plain, "mlp/m1"));
    const struct overrides parts = {1, {{s, s->eager}}};
    assert_int_equal(dispatch_whole(d, 3, NULL), 0); /* eager is its parts */
    dispatch_publish(d, s, &fused);
    assert_int_equal(dispatch_whole(d, 3, NULL), 1u << REGION_MLP);
    assert_int_equal(dispatch_whole(d, 3, &parts), 0); /* a canary of the parts */
    assert_int_equal(dispatch_whole(d, 2, NULL), 0);   /* another slot */
    assert_int_equal(dispatch_whole(plain, 3, NULL), 0);
    assert_null(dispatch_find(d, "reduce/m1"));
    dispatch_close(d);
    dispatch_close(plain);
}

static void reduce_has_slots_where_there_are_several_ranks(void **state)
{
    (void)state;
    static struct kernel own[REGION_NODES];
    const struct kernel *k[REGION_NODES];
    struct dispatch *plain = open_table(), *names = dispatch_open_names();
    for (int r = 0; r < REGION_NODES; r++)
        k[r] = &own[r];
    struct dispatch *d = dispatch_open_ranks(k, NULL);
    assert_int_equal(dispatch_slots(d), dispatch_slots(plain) + M_BUCKETS);
    struct slot *s = dispatch_slot(d, REGION_REDUCE, 0, 5, 9999);
    assert_string_equal(s->name, "reduce/m6");
    assert_ptr_equal(s->eager, &own[REGION_REDUCE]);
    assert_ptr_equal(dispatch_find(d, "reduce/m6"), s);
    assert_null(dispatch_find(d, "mlp/m1"));
    assert_null(dispatch_slot(plain, REGION_REDUCE, 0, 5, 0));
    assert_non_null(dispatch_find(names, "reduce/m2048"));
    assert_non_null(dispatch_find(names, "mlp/m16"));
    dispatch_close(names);
    dispatch_close(d);
    dispatch_close(plain);
}

static void a_replaced_kernel_is_free_after_the_next_boundary(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    struct kernel k = {.id = "0123456789abcdef", .region = REGION_MLP_IN};
    struct slot *s = dispatch_slot(d, REGION_MLP_IN, 0, 1, 0);
    dispatch_boundary(d, false); /* a step is under way from here */
    int64_t epoch = dispatch_publish(d, s, &k);
    assert_ptr_equal(atomic_load(&s->kernel), &k);
    assert_false(dispatch_passed(d, epoch));
    dispatch_boundary(d, false);
    assert_true(dispatch_passed(d, epoch));
    epoch = dispatch_publish(d, s, s->eager);
    assert_false(dispatch_passed(d, epoch));
    dispatch_boundary(d, true); /* idle: no step can use anything */
    assert_true(dispatch_passed(d, epoch));
    dispatch_close(d);
}

static void where_steps_overlap_a_kernel_is_out_of_use_one_boundary_later(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    struct slot *s = dispatch_slot(d, REGION_MLP_IN, 0, 1, 0);
    dispatch_pipelined(d);
    dispatch_boundary(d, false); /* step 1 begins */
    int64_t epoch = dispatch_publish(d, s, s->eager);
    dispatch_boundary(d, false); /* step 2 begins while step 1 is under way */
    assert_false(dispatch_passed(d, epoch));
    dispatch_boundary(d, false); /* step 3: step 1 has landed */
    assert_true(dispatch_passed(d, epoch));
    dispatch_close(d);
}

/* Who only wants an epoch names the kernel that is there: for the engine's gaps that is no swap. */
static void the_same_kernel_again_is_no_swap(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    struct kernel k = {.id = "0123456789abcdef", .region = REGION_MLP_IN};
    struct slot *s = dispatch_slot(d, REGION_MLP_IN, 0, 1, 0);
    dispatch_boundary(d, false);
    dispatch_publish(d, s, &k);
    assert_int_equal(dispatch_swaps(d), 1);
    int64_t epoch = dispatch_publish(d, s, &k);
    assert_int_equal(dispatch_swaps(d), 1);
    assert_false(dispatch_passed(d, epoch));
    dispatch_publish(d, s, s->eager);
    assert_int_equal(dispatch_swaps(d), 2);
    dispatch_close(d);
}

/* A kernel with other bits in a slot of so many tokens: narrower steps have eager's. */
static void bits_are_eagers_up_to_the_first_kernel_with_others(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    static struct kernel same = {.id = "same", .bit_equal = true}, other = {.id = "other"};
    assert_int_equal(dispatch_bit_equal(d, 16), 16);
    assert_int_equal(dispatch_bit_equal(d, 0), 0); /* eager's own widths round differently */
    dispatch_publish(d, dispatch_find(d, "head/m1"), &same);
    dispatch_publish(d, dispatch_find(d, "mlp_in/m32"), &other);
    assert_int_equal(dispatch_bit_equal(d, 16), 16);
    dispatch_publish(d, dispatch_find(d, "attn/m6/c1024"), &other);
    assert_int_equal(dispatch_bit_equal(d, 16), 4);
    assert_int_equal(dispatch_bit_equal(d, 3), 3);
    dispatch_publish(d, dispatch_find(d, "mlp_out/m2"), &other);
    assert_int_equal(dispatch_bit_equal(d, 16), 1);
    dispatch_publish(d, dispatch_find(d, "mlp_out/m1"), &other);
    assert_int_equal(dispatch_bit_equal(d, 16), 0);
    dispatch_close(d);
}

/* Where ranks latch what they run, bits are those of the next step: it latches what is there now.
 */
static void bits_are_those_of_the_step_that_latches_next(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    static struct kernel other = {.id = "other", .number = 1};
    dispatch_latch(d, NULL, NULL);
    dispatch_publish(d, dispatch_find(d, "mlp_out/m1"), &other);
    assert_int_equal(dispatch_bit_equal(d, 16), 0);
    dispatch_latch(d, NULL, NULL);
    dispatch_publish(d, dispatch_find(d, "mlp_out/m1"), &eager[REGION_MLP_OUT]);
    assert_int_equal(dispatch_bit_equal(d, 16), 16);
    dispatch_close(d);
}

struct swapper {
    struct dispatch *d;
    struct slot *slot;
    const struct kernel *k;
    _Atomic bool stop;
};

/* Rests after a swap for no time or a little longer each time, so that who looks finds the table
 * both in the middle of a swap and unchanged, on a processor that others use as well. */
static void *swap_on_and_on(void *arg)
{
    struct swapper *w = arg;
    for (unsigned n = 0; !atomic_load(&w->stop); n++) {
        dispatch_publish(w->d, w->slot, n % 2 ? w->slot->eager : w->k);
        for (unsigned rest = n % 512; rest > 0; rest--)
            atomic_signal_fence(memory_order_seq_cst);
    }
    return NULL;
}

/* A step that finds the table unchanged ran what was looked at before it: here an even number of
 * swaps leaves eager in the slot, and an odd one does not. */
static void a_table_that_is_unchanged_held_what_was_read_of_it(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    struct kernel k = {.id = "0123456789abcdef", .region = REGION_MLP_IN};
    struct swapper w = {.d = d, .slot = dispatch_slot(d, REGION_MLP_IN, 0, 1, 0), .k = &k};
    pthread_t thread;
    uint64_t swaps = dispatch_swaps(d);
    assert_true(dispatch_unchanged(d, swaps));
    dispatch_publish(d, w.slot, w.slot->eager); /* no swap */
    assert_true(dispatch_unchanged(d, swaps));
    dispatch_publish(d, w.slot, &k);
    assert_false(dispatch_unchanged(d, swaps));
    assert_true(dispatch_unchanged(d, dispatch_swaps(d)));
    dispatch_withdraw(d, w.slot, &k);
    assert_true(dispatch_unchanged(d, 2));
    dispatch_withdraw(d, w.slot, &k); /* it is there no more */
    assert_true(dispatch_unchanged(d, 2));
    assert_int_equal(pthread_create(&thread, NULL, swap_on_and_on, &w), 0);
    int wrong = 0, unchanged = 0;
    for (int i = 0; i < 2000000 || unchanged < 1000; i++) {
        swaps = dispatch_swaps(d);
        const struct kernel *read = slot_kernel(w.slot);
        if (!dispatch_unchanged(d, swaps))
            continue;
        unchanged++;
        wrong += (read == &k) != (swaps % 2 == 1);
    }
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
    dispatch_close(d);
}

static void what_broke_or_was_wrong_is_distrusted(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    struct kernel k = {.id = "0123456789abcdef", .region = REGION_MLP_IN};
    struct slot *s = dispatch_slot(d, REGION_MLP_IN, 0, 1, 0);
    dispatch_publish(d, s, &k);
    dispatch_publish(d, s, s->eager); /* for any other reason */
    assert_int_equal(dispatch_distrusts(d), 0);
    dispatch_distrust(d);
    assert_int_equal(dispatch_distrusts(d), 1);
    dispatch_withdraw(d, s, &k); /* a canary's, in no slot */
    assert_int_equal(dispatch_distrusts(d), 2);
    dispatch_close(d);
}

static void the_fingerprint_tells_the_active_set(void **state)
{
    (void)state;
    struct dispatch *d = open_table();
    struct kernel k = {.id = "0123456789abcdef", .region = REGION_MLP_IN};
    char none[9], one[9], other[9], back[9];
    dispatch_fingerprint(d, none);
    dispatch_publish(d, dispatch_slot(d, REGION_MLP_IN, 0, 1, 0), &k);
    dispatch_fingerprint(d, one);
    dispatch_publish(d, dispatch_slot(d, REGION_MLP_IN, 0, 2, 0), &k);
    dispatch_fingerprint(d, other);
    dispatch_publish(d, dispatch_slot(d, REGION_MLP_IN, 0, 1, 0), &eager[REGION_MLP_IN]);
    dispatch_publish(d, dispatch_slot(d, REGION_MLP_IN, 0, 2, 0), &eager[REGION_MLP_IN]);
    dispatch_fingerprint(d, back);
    assert_string_equal(none, back);
    assert_string_equal(none, "811c9dc5"); /* FNV-1a of nothing, and of what is active */
    assert_string_equal(one, "69108d5d");
    assert_string_not_equal(none, one);
    assert_string_not_equal(one, other);
    dispatch_publish(d, dispatch_slot_at(d, 0), &k); /* every slot counts */
    dispatch_fingerprint(d, one);
    assert_string_not_equal(one, none);
    dispatch_close(d);
}

struct noted {
    int n, slot[8];
    int32_t number[8];
};

static void note(void *ctx, int slot, const struct kernel *k)
{
    struct noted *c = ctx;
    c->slot[c->n] = slot;
    c->number[c->n++] = k->number;
}

/* Two kernels at one address, one after the other, are two; and what breaks in a step is out of it.
 */
static void a_latched_table_is_what_steps_run_until_it_is_latched_again(void **state)
{
    (void)state;
    static struct kernel one = {.id = "one", .number = 1}, two = {.id = "two", .number = 2};
    struct dispatch *d = open_table();
    struct slot *a = dispatch_slot_at(d, 3), *b = dispatch_slot_at(d, 90);
    struct noted c = {0};
    dispatch_publish(d, a, &one);
    assert_ptr_equal(slot_kernel(a), &one); /* nobody has latched it yet */
    dispatch_latch(d, note, &c);
    assert_int_equal(c.n, 1);
    assert_int_equal(c.slot[0], 3);
    assert_int_equal(c.number[0], 1);
    dispatch_publish(d, b, &two);
    dispatch_publish(d, a, a->eager);
    assert_ptr_equal(slot_kernel(a), &one);
    assert_ptr_equal(slot_kernel(b), b->eager);
    c = (struct noted){0};
    dispatch_latch(d, note, &c);
    assert_int_equal(c.n, 2);
    assert_int_equal(c.slot[0], 3);
    assert_int_equal(c.number[0], 0);
    assert_int_equal(c.slot[1], 90);
    assert_int_equal(c.number[1], 2);
    dispatch_withdraw(d, b, &two);
    assert_ptr_equal(slot_kernel(b), b->eager);
    c = (struct noted){0};
    dispatch_latch(d, note, &c);
    assert_int_equal(c.n, 1);
    assert_int_equal(c.number[0], 0);
    dispatch_publish(d, a, &one);
    dispatch_latch(d, NULL, NULL);
    one.number = 5;
    c = (struct noted){0};
    dispatch_latch(d, note, &c);
    assert_int_equal(c.n, 1);
    assert_int_equal(c.number[0], 5);
    struct slot *ends[] = {dispatch_slot_at(d, 0), dispatch_slot_at(d, dispatch_slots(d) - 1)};
    for (int i = 0; i < 2; i++)
        dispatch_publish(d, ends[i], &two);
    dispatch_latch(d, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        dispatch_publish(d, ends[i], ends[i]->eager);
        assert_ptr_equal(slot_kernel(ends[i]), &two);
    }
    dispatch_close(d);
}

/* Layers 1 and 3 of four have ffn_down in q6_k, and no region fuses it with its neighbour. */
static void each_format_class_has_slots_of_its_own(void **state)
{
    (void)state;
    struct layer layer[4];
    struct model m = {.shape = {.layers = 4}, .layer = layer};
    for (int i = 0; i < 4; i++) {
        memset(&layer[i], 0, sizeof layer[i]);
        layer[i].down =
            (struct weight){.rows = 256, .cols = 256, .type = i % 2 ? DTYPE_Q6_K : DTYPE_Q4_K};
    }
    const struct kernel *k[REGION_LOCAL];
    struct kernel none[REGION_LOCAL] = {{.id = "eager"}}, fast = {.id = "fast"};
    for (int r = 0; r < REGION_LOCAL; r++)
        k[r] = &none[r];
    struct dispatch *plain = dispatch_open(k, NULL), *names = dispatch_open_names();
    struct dispatch *d = dispatch_open_fused(k, formats_open(&m, MACHINE_CPU));
    assert_int_equal(dispatch_slots(d), dispatch_slots(plain) + M_BUCKETS);
    struct slot *odd = dispatch_slot(d, REGION_MLP_OUT, 3, 1, 99),
                *even = dispatch_slot(d, REGION_MLP_OUT, 2, 1, 99);
    assert_string_equal(odd->name, "mlp_out/m1/q6_k");
    assert_string_equal(even->name, "mlp_out/m1/q4_k");
    assert_string_equal(dispatch_slot(d, REGION_MLP_IN, 3, 1, 99)->name, "mlp_in/m1");
    assert_ptr_equal(dispatch_slot(d, REGION_MLP_OUT, 1, 1, 0), odd);
    assert_ptr_equal(dispatch_slot_of_place(d, slot_place(dispatch_formats(d), odd), 1, 0), odd);
    assert_null(dispatch_slot_of_place(d, FORMAT_CLASSES * REGION_NODES + REGION_MLP_OUT, 1, 0));
    assert_null(dispatch_slot(d, REGION_MLP, 0, 1, 0));
    assert_null(dispatch_find(d, "mlp/m1"));
    assert_null(dispatch_find(d, "mlp_out/m1"));
    assert_ptr_equal(dispatch_find(d, "mlp_out/m1/q6_k"), odd);
    assert_int_equal(slot_runs(odd, 4), 2);
    assert_int_equal(slot_layer(odd), 1);
    assert_int_equal(slot_runs(dispatch_find(d, "mlp_in/m1"), 4), 4);
    assert_true(slot_named(odd, "mlp_out/m1/q6_k") && slot_named(odd, "mlp_out/m1"));
    assert_false(slot_named(odd, "mlp_out/m1/q4_k") || slot_named(odd, "mlp_out/m"));
    assert_true(slot_kin(odd, dispatch_find(d, "mlp_out/m2/q6_k")));
    assert_false(slot_kin(odd, even));
    dispatch_publish(d, odd, &fast);
    assert_ptr_equal(slot_kernel(even), &none[REGION_MLP_OUT]);
    /* In a table of names, its bucket in any model. */
    assert_string_equal(dispatch_find_plain(names, "mlp_out/m1/q6_k")->name, "mlp_out/m1");
    assert_string_equal(dispatch_find_plain(names, "attn/m1/c256")->name, "attn/m1/c256");
    assert_null(dispatch_find_plain(names, "mlp_out/m1/q6_k-q6_k"));
    assert_null(dispatch_find_plain(names, "mlp_out/m5/q6_k"));
    assert_null(dispatch_find_plain(names, "head/m1/q6_k"));
    struct dispatch *copy = dispatch_copy_names(d);
    dispatch_close(d);
    assert_non_null(dispatch_find(copy, "mlp_out/m1/q6_k"));
    dispatch_close(copy);
    dispatch_close(names);
    dispatch_close(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_format_class_has_slots_of_its_own),
        cmocka_unit_test(every_slot_starts_with_its_regions_eager_kernel),
        cmocka_unit_test(a_size_goes_to_the_smallest_bucket_that_holds_it),
        cmocka_unit_test(reduce_has_slots_where_there_are_several_ranks),
        cmocka_unit_test(fused_regions_have_slots_for_few_tokens_where_they_are_asked_for),
        cmocka_unit_test(a_replaced_kernel_is_free_after_the_next_boundary),
        cmocka_unit_test(where_steps_overlap_a_kernel_is_out_of_use_one_boundary_later),
        cmocka_unit_test(the_same_kernel_again_is_no_swap),
        cmocka_unit_test(a_latched_table_is_what_steps_run_until_it_is_latched_again),
        cmocka_unit_test(bits_are_eagers_up_to_the_first_kernel_with_others),
        cmocka_unit_test(bits_are_those_of_the_step_that_latches_next),
        cmocka_unit_test(a_table_that_is_unchanged_held_what_was_read_of_it),
        cmocka_unit_test(what_broke_or_was_wrong_is_distrusted),
        cmocka_unit_test(the_fingerprint_tells_the_active_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
