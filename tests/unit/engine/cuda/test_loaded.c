/* Tests of engine/cuda/loaded.c: what a cubin may say of itself, and where its weights go. */
#include "tests/unit/unit.h"

#include "engine/cuda/loaded.c"

static struct cuda_kernel_info fair(void)
{
    return (struct cuda_kernel_info){.abi = WHET_CUDA_ABI,
                                     .region = REGION_MLP_IN,
                                     .m_max = 4,
                                     .launches = 1,
                                     .launch = {{.grid = {132, 1, 1}, .threads = 256}}};
}

static struct backend rig(void)
{
    struct backend b = {.work_bytes = 1 << 20};
    b.device.sharedMemPerBlockOptin = 232448;
    return b;
}

static void absurd_claims_are_refused(void **state)
{
    (void)state;
    struct backend b = rig();
    struct err e;
    struct cuda_kernel_info i = fair();
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), 0);
    assert_int_equal(check_info(&b, &i, REGION_MLP_OUT, &e), -1);
    assert_non_null(strstr(e.msg, "expected mlp_out"));
    i.abi = 7;
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
    assert_non_null(strstr(e.msg, "interface 7"));
    for (int bad = 0; bad < 9; bad++) {
        i = fair();
        struct cuda_launch *l = &i.launch[0];
        *(bad == 0   ? &i.m_max
          : bad == 1 ? &i.launches
          : bad == 2 ? &i.counters
          : bad == 3 ? &l->grid[0]
          : bad == 4 ? &l->threads
          : bad == 5 ? &l->smem
                     : &l->grid[1]) = bad == 2   ? CUDA_COUNTERS + 1
                                      : bad == 5 ? 1 << 20
                                                 : -1;
        if (bad == 7)
            i.work_bytes = 2 << 20, l->grid[1] = 1;
        if (bad == 8) {
            l->grid[1] = 1;
            i.packed_bytes = 16;
            memset(i.layout, 'x', sizeof i.layout);
        }
        assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
    }
}

static void packs_fill_the_gaps_of_the_arena(void **state)
{
    (void)state;
    struct backend b = rig();
    struct pack second = {.at = 300, .bytes = 100},
                first = {.next = &second, .at = 0, .bytes = 100};
    b.packs.bytes = 1000;
    assert_int_equal(find_room(&b, 1000), 0);
    b.packs_list = &first;
    assert_int_equal(find_room(&b, 200), 100);
    assert_int_equal(find_room(&b, 201), 400);
    assert_int_equal(find_room(&b, 600), 400);
    assert_int_equal(find_room(&b, 601), -1);
}

static void a_pack_goes_with_its_last_user(void **state)
{
    (void)state;
    struct backend b = rig();
    struct pack *p = xcalloc(1, sizeof *p);
    p->users = 2;
    b.packs_list = p;
    pack_drop(&b, p);
    assert_ptr_equal(b.packs_list, p);
    pack_drop(&b, p);
    assert_null(b.packs_list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absurd_claims_are_refused),
        cmocka_unit_test(packs_fill_the_gaps_of_the_arena),
        cmocka_unit_test(a_pack_goes_with_its_last_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
