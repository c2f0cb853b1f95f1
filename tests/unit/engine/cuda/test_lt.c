/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/lt.c and lt_record.c: what needs the library's headers but no device. */
#include "tests/unit/unit.h"

#include <unistd.h>

#include "engine/cuda/lt.c"

static char path[] = "/tmp/whet-test-lt-XXXXXX";

static struct lt_record fair(void)
{
    struct lt_record r = {.library = (int64_t)cublasLtGetVersion(),
                          .region = REGION_MLP_IN,
                          .m = 2048,
                          .n = 12288,
                          .k = 2048,
                          .ids = "algorithm 66, tile 20, split-K 1"};
    for (int i = 0; i < LT_WORDS; i++)
        r.algo[i] = 0x123456789abcdef0ull * (uint64_t)(i + 1);
    return r;
}

static void write_text(const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void a_record_comes_back_as_it_was_written(void **state)
{
    (void)state;
    struct lt_record a = fair(), b;
    struct err e;
    assert_int_equal(lt_record_write(path, &a, &e), 0);
    assert_true(lt_record_is(path));
    assert_int_equal(lt_record_read(path, &b, &e), 0);
    assert_int_equal(b.library, a.library);
    assert_int_equal(b.region, a.region);
    assert_int_equal(b.m, a.m);
    assert_int_equal(b.n, a.n);
    assert_int_equal(b.k, a.k);
    assert_string_equal(b.ids, a.ids);
    assert_memory_equal(b.algo, a.algo, sizeof a.algo);
}

/* Cut anywhere, or with one character changed into another class: never read as something else. */
static void a_record_that_was_cut_or_grew_is_refused(void **state)
{
    (void)state;
    struct lt_record a = fair(), b;
    struct err e;
    char text[1000];
    assert_int_equal(lt_record_write(path, &a, &e), 0);
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 2, f);
    fclose(f);
    for (size_t i = 0; i < n; i++) {
        write_text(text, i);
        assert_int_equal(lt_record_read(path, &b, &e), -1);
    }
    text[n] = '\n';
    write_text(text, n + 1);
    assert_int_equal(lt_record_read(path, &b, &e), -1);
    for (size_t i = 0; i < n; i++) {
        char was = text[i];
        text[i] = '!';
        write_text(text, n);
        int rc = lt_record_read(path, &b, &e);
        if (rc == 0) /* only the words for people may hold anything */
            assert_memory_equal(b.algo, a.algo, sizeof a.algo);
        text[i] = was;
    }
    write_text("\177ELF", 4);
    assert_false(lt_record_is(path));
}

static void shapes_out_of_range_are_refused(void **state)
{
    (void)state;
    struct err e;
    struct lt_record b;
    for (int bad = 0; bad < 5; bad++) {
        struct lt_record a = fair();
        *(bad == 0 ? &a.m : bad == 1 ? &a.n : &a.k) = bad == 2 ? -4 : 0;
        if (bad == 3)
            a = fair(), a.m = 4096;
        if (bad == 4)
            a = fair(), a.region = REGION_ATTN;
        assert_int_equal(lt_record_write(path, &a, &e), 0);
        assert_int_equal(lt_record_read(path, &b, &e), -1);
    }
}

/* Qwen3-1.7B. */
static const struct model model = {
    .shape = {
        .hidden = 2048, .heads = 16, .kv_heads = 8, .head_dim = 128, .ffn = 6144, .vocab = 151936}};

static struct backend rig(void)
{
    static struct device_layer layer;
    return (struct backend){.model = &model, .on.layer = &layer, .options.max_tokens = 2048};
}

static void a_record_for_another_version_or_shape_is_not_loaded(void **state)
{
    (void)state;
    struct backend b = rig();
    struct lt *l;
    struct err e;
    struct lt_record a = fair();
    a.library++;
    assert_int_equal(lt_record_write(path, &a, &e), 0);
    assert_int_equal(lt_open(&b, path, REGION_MLP_IN, &l, &e), -1);
    assert_non_null(strstr(e.msg, "chosen by cuBLASLt"));
    a = fair();
    assert_int_equal(lt_record_write(path, &a, &e), 0);
    assert_int_equal(lt_open(&b, path, REGION_MLP_OUT, &l, &e), -1);
    assert_non_null(strstr(e.msg, "for mlp_in of 12288 x 2048, here is mlp_out of 2048 x 6144"));
    a.k = 2560;
    assert_int_equal(lt_record_write(path, &a, &e), 0);
    assert_int_equal(lt_open(&b, path, REGION_MLP_IN, &l, &e), -1);
}

static void knobs_are_read_from_what_a_compiler_would_get(void **state)
{
    (void)state;
    char *all[] = {"-DRANK=3", "-DASK=1", "-DSPLIT=0", "-DREGION=4", "-DM_MAX=512", NULL};
    char *without[] = {"-DRANK=3", "-DASK=1", "-DREGION=4", "-DM_MAX=512", NULL};
    char *attention[] = {"-DRANK=3", "-DASK=1", "-DSPLIT=0", "-DREGION=2", "-DM_MAX=512", NULL};
    struct wanted w;
    struct err e;
    assert_int_equal(read_wanted(all, &w, &e), 0);
    assert_int_equal(w.RANK, 3);
    assert_int_equal(w.ASK, 1);
    assert_int_equal(w.region, REGION_MLP_IN);
    assert_int_equal(w.m, 512);
    assert_int_equal(read_wanted(without, &w, &e), -1);
    assert_string_equal(e.msg, "SPLIT is not given");
    assert_int_equal(read_wanted(attention, &w, &e), -1);
}

static void every_padded_width_has_a_place_of_its_own(void **state)
{
    (void)state;
    bool seen[LT_WIDTHS] = {false};
    int n = 0;
    for (int32_t m = 1; m <= LT_M_MOST; m = width_after(m), n++) {
        assert_int_equal(walk_padded(m), m);
        assert_in_range(width_index(m), 0, LT_WIDTHS - 1);
        assert_false(seen[width_index(m)]);
        seen[width_index(m)] = true;
    }
    assert_int_equal(n, NARROW_BUCKETS + 2048 / NARROW - 1);
    struct lt l = {.m = 2048};
    l.runs[width_index(128)] = true;
    assert_true(lt_runs(&l, 128));
    assert_false(lt_runs(&l, 192));
    assert_false(lt_runs(&l, 4096)); /* wider than any record */
    assert_false(lt_runs(NULL, 64));
}

static void products_of_regions_have_their_shapes_and_types(void **state)
{
    (void)state;
    struct backend b = rig();
    struct product in = blas_product(&b, REGION_ATTN_IN, 64);
    struct product wide = blas_product(&b, REGION_MLP_IN, 128);
    struct product out = blas_product(&b, REGION_MLP_OUT, 128);
    assert_int_equal(in.n, 4096);
    assert_int_equal(in.k, 2048);
    assert_false(in.d16);
    assert_true(wide.d16); /* what lies between two wide kernels is bf16 */
    assert_int_equal(wide.n, 12288);
    assert_false(out.d16);
    assert_int_equal(out.k, 6144);
}

int main(void)
{
    int fd = mkstemp(path);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_comes_back_as_it_was_written),
        cmocka_unit_test(a_record_that_was_cut_or_grew_is_refused),
        cmocka_unit_test(shapes_out_of_range_are_refused),
        cmocka_unit_test(a_record_for_another_version_or_shape_is_not_loaded),
        cmocka_unit_test(knobs_are_read_from_what_a_compiler_would_get),
        cmocka_unit_test(every_padded_width_has_a_place_of_its_own),
        cmocka_unit_test(products_of_regions_have_their_shapes_and_types),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close(fd);
    unlink(path);
    return failed;
}
