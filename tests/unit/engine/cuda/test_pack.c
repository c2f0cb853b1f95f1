/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/pack.c: where repacked weights go, and when. */
#include "tests/unit/unit.h"

#include <cuda_runtime_api.h>

/* The kernel that packs, instead of a device that would run it: notes which matrices it was given.
 */
static const void *packed[8];
static char *packed_to[8];
static int packs;

static cudaError_t pack_here(void *const *parameter);
#define cudaLibraryGetKernel(entry, library, name) ((void)(library), *(entry) = NULL, cudaSuccess)
#define cudaLaunchKernel(...) pack_here(parameter)
#define cudaStreamSynchronize(stream) ((void)(stream), cudaSuccess)
#include "engine/cuda/pack.c"

static cudaError_t pack_here(void *const *parameter)
{
    const struct cuda_pack_args *a = parameter[0];
    packed[packs] = a->src;
    packed_to[packs++] = a->dst;
    return cudaSuccess;
}

static void packs_fill_the_gaps_of_the_arena(void **state)
{
    (void)state;
    struct backend b = {0};
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
    struct backend b = {0};
    struct pack *p = xcalloc(1, sizeof *p);
    p->users = 2;
    b.packs_list = p;
    pack_drop(&b, p);
    assert_ptr_equal(b.packs_list, p);
    pack_drop(&b, p);
    assert_null(b.packs_list);
}

static struct format_class *every_second(int32_t from)
{
    struct format_class *c = xcalloc(1, sizeof *c + 2 * sizeof c->layer[0]);
    c->layers = 2;
    c->layer[0] = from;
    c->layer[1] = from + 2;
    return c;
}

/* Layers 1 and 3 of four, then the other two, with a layout of the same name. */
static void a_class_has_a_pack_of_its_layers(void **state)
{
    (void)state;
    static char arena[4096], matrix[4];
    const struct model model = {.shape = {.layers = 4, .hidden = 64, .ffn = 128}};
    struct device_layer layer[4];
    struct backend b = {.model = &model, .packs = {.base = arena, .bytes = sizeof arena}};
    struct format_class *odd = every_second(1), *even = every_second(0);
    struct loaded l[3] = {{.info = {.packed_bytes = 200, .layout = "rows", .m_max = 1}}};
    struct err e = {""};
    l[1] = l[2] = l[0];
    for (int i = 0; i < 4; i++)
        layer[i].wdown = (struct device_weight){&matrix[i], DTYPE_BF16, NULL};
    b.on.layer = layer;
    packs = 0;
    assert_int_equal(pack_open(&b, &l[0], REGION_MLP_OUT, odd, &e), 0);
    assert_int_equal(packs, 2);
    assert_ptr_equal(packed[0], &matrix[1]);
    assert_ptr_equal(packed[1], &matrix[3]);
    assert_ptr_equal(packed_to[1], packed_to[0] + 256);
    assert_int_equal(l[0].pack->bytes, 512);
    assert_int_equal(l[0].pack->index[3], 1);
    assert_int_equal(pack_open(&b, &l[1], REGION_MLP_OUT, even, &e), 0);
    assert_ptr_not_equal(l[1].pack, l[0].pack);
    assert_int_equal(l[1].pack->at, 512);
    assert_int_equal(packs, 4);
    assert_int_equal(pack_open(&b, &l[2], REGION_MLP_OUT, odd, &e), 0);
    assert_ptr_equal(l[2].pack, l[0].pack);
    assert_int_equal(packs, 4);
    for (int i = 0; i < 3; i++)
        pack_drop(&b, l[i].pack);
    assert_null(b.packs_list);
    free(odd);
    free(even);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_fill_the_gaps_of_the_arena),
        cmocka_unit_test(a_pack_goes_with_its_last_user),
        cmocka_unit_test(a_class_has_a_pack_of_its_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
