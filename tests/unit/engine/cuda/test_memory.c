/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/memory.c: the plan is what is handed out, and no two things overlap. */
#include "tests/unit/unit.h"

#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/memory.h"

/* A device with so much free memory, of which it gives nothing when asked. */
static size_t device_free = (size_t)140 << 30;
static cudaError_t fake_info(size_t *room, size_t *total)
{
    *room = device_free;
    *total = (size_t)141 << 30;
    return cudaSuccess;
}
static cudaError_t fake_malloc(void **p)
{
    *p = NULL;
    return cudaErrorMemoryAllocation;
}
static cudaError_t fake_properties(struct cudaDeviceProp *p)
{
    *p = (struct cudaDeviceProp){.multiProcessorCount = 132};
    return cudaSuccess;
}
#define cudaMemGetInfo(room, total) fake_info(room, total)
#undef cudaGetDeviceProperties
#define cudaGetDeviceProperties(p, device) fake_properties(p)
#define cudaMalloc(p, bytes) ((void)(bytes), fake_malloc(p))
#include "engine/cuda/memory.c"

static struct model model = {.shape = {.layers = 16,
                                       .hidden = 2048,
                                       .heads = 32,
                                       .kv_heads = 8,
                                       .head_dim = 64,
                                       .ffn = 8192,
                                       .vocab = 128256,
                                       .max_context = 131072,
                                       .tied_head = true}};

static struct backend sized(int32_t tokens, int32_t rows)
{
    struct backend b = {.model = &model, .positions = 4096};
    b.options = (struct backend_options){.max_tokens = tokens, .max_rows = rows};
    b.device.multiProcessorCount = 132;
    size_blocks(&b);
    return b;
}

static void what_is_handed_out_is_what_was_counted(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 64, 65, 512, 2048}, rows[] = {1, 64, 128, 576, 64};
    for (int i = 0; i < 5; i++) {
        struct backend b = sized(tokens[i], rows[i]);
        carve_buffers(&b, &b.buffers);
        int64_t counted = b.buffers.used;
        struct arena real = {.base = (char *)4096, .bytes = counted};
        carve_buffers(&b, &real);
        assert_int_equal(real.used, counted);
    }
}

static void a_probes_block_has_the_page_table_it_asks_for(void **state)
{
    (void)state;
    struct backend b = {.model = &model, .positions = 65, .table_least = 4096};
    b.options = (struct backend_options){.max_tokens = 64, .max_rows = 64};
    size_blocks(&b);
    assert_int_equal(b.narrow.pages, NARROW * 5);
    assert_int_equal(b.spare.block.pages, 4096);
    struct arena a = {.base = (char *)4096};
    carve_spare(&b, &a);
    assert_in_range(b.spare.block.bytes, 4096 * 4, 4096 * 4 + 65536);
    b.table_least = 1;
    size_blocks(&b);
    assert_int_equal(b.spare.block.pages, NARROW * 5);
}

static void spare_pages_fit_their_memory_whatever_the_heads(void **state)
{
    (void)state;
    static const int32_t heads[] = {1, 8, 32, 40}, width[] = {64, 128, 128, 128};
    for (int i = 0; i < 4; i++) {
        struct model_shape s = {.kv_heads = heads[i], .head_dim = width[i]};
        int64_t page = 2LL * KV_PAGE * heads[i] * width[i];
        assert_true(memory_spare_pages(&s) * page <= SPARE_KV_BYTES);
        assert_true((memory_spare_pages(&s) + 1) * page > SPARE_KV_BYTES);
        assert_true(memory_spare_pages(&s) > 4 * NARROW); /* room for a step's own and others */
    }
}

static void parts_do_not_overlap(void **state)
{
    (void)state;
    struct backend b = sized(512, 128);
    struct arena a = {.base = (char *)4096};
    carve_buffers(&b, &a);
    const int64_t q = 32 * 64, m = 512;
    const struct {
        const void *at;
        int64_t bytes;
    } part[] = {
        {b.narrow.device, b.narrow.bytes},
        {b.wide.device, b.wide.bytes},
        {b.x[0], m * 2048 * 4},
        {b.x[1], m * 2048 * 4},
        {b.q, NARROW * q * 4},
        {b.a, NARROW * q * 4},
        {b.h, NARROW * 8192 * 4},
        {b.q16, m * q * 2},
        {b.a16, m * q * 2},
        {b.h16, m * 8192 * 2},
        {b.n16, m * 2048 * 2},
        {b.raw, m * 16384 * 2},
        {b.logits, 128LL * 128256 * 4},
        {b.weight, 128LL * 128256 * 4},
        {b.counter, CUDA_COUNTERS * 4},
        {b.work, b.work_bytes},
        {b.spare.y, 64LL * 128256 * 4},
        {b.spare.k, SPARE_KV_BYTES},
    };
    const int n = sizeof part / sizeof *part;
    for (int i = 0; i < n; i++) {
        assert_int_equal((uintptr_t)part[i].at % 256, 0);
        for (int k = 0; k < i; k++) {
            const char *x = part[i].at, *y = part[k].at;
            assert_true(x + part[i].bytes <= y || y + part[k].bytes <= x);
        }
    }
}

static void page_tables_have_room_for_every_sequence_at_full_length(void **state)
{
    (void)state;
    struct backend b = sized(512, 128);
    assert_int_equal(b.narrow.pages, 64 * 4096 / KV_PAGE);
    assert_int_equal(b.wide.pages, 128 * 4096 / KV_PAGE);
    struct arena a = {.base = (char *)4096};
    carve_buffers(&b, &a);
    assert_true((char *)(b.wide.page_table + b.wide.pages) <= b.wide.device + b.wide.bytes);
    assert_true(b.wide.tile > (struct eager_tile *)b.wide.span);
}

static void a_plan_that_does_not_fit_is_refused_with_every_size(void **state)
{
    (void)state;
    struct backend b = {.model = &model};
    struct err e = {""};
    b.options = (struct backend_options){
        .max_tokens = 512, .max_rows = 128, .kv_pages = 4096, .pack_bytes = (int64_t)1 << 30};
    b.device.multiProcessorCount = 132;
    device_free = (size_t)3 << 30;
    assert_int_equal(memory_open(&b, &e), -1);
    assert_non_null(strstr(e.msg, "weights 2.30"));
    assert_non_null(strstr(e.msg, "KV pages 2.00"));
    assert_non_null(strstr(e.msg, "specializer.pack_mib 1.00"));
    assert_non_null(strstr(e.msg, "3.00 are free"));
    assert_null(b.weights.base);

    struct backend c = {.model = &model, .options = b.options, .device = b.device};
    device_free = (size_t)140 << 30; /* it fits, but somebody else was faster */
    assert_int_equal(memory_open(&c, &e), -1);
    assert_non_null(strstr(e.msg, "2.30 GiB for weights"));
    assert_non_null(strstr(e.msg, "out of memory"));
}

/* It is reckoned before there is a collective, by which buffers of ranks are taken. */
static void room_for_pages_leaves_what_a_rank_has_more(void **state)
{
    (void)state;
    static struct layer layer[16];
    struct model whole = model, part;
    whole.layer = layer;
    whole.head.rows = 64128;
    part = whole;
    part.shard.world = 2;
    const struct backend_options o = {.max_tokens = 512, .max_rows = 128};
    struct backend b = {.model = &part, .options = o};
    int64_t page, room = memory_kv_room(&whole, &o, &page);
    ranks_carve(&b, 2, &b.buffers);
    assert_true(b.buffers.used >= 128LL * 3 * 64128 * 4);
    int64_t less = room - memory_kv_room(&part, &o, &page);
    assert_in_range(less, b.buffers.used / 4 * 3 - 4, b.buffers.used / 4 * 3 + 4);
    part.alone = true; /* a part by name, which runs without the others */
    assert_int_equal(memory_kv_room(&part, &o, &page), room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spare_pages_fit_their_memory_whatever_the_heads),
        cmocka_unit_test(a_probes_block_has_the_page_table_it_asks_for),
        cmocka_unit_test(what_is_handed_out_is_what_was_counted),
        cmocka_unit_test(parts_do_not_overlap),
        cmocka_unit_test(page_tables_have_room_for_every_sequence_at_full_length),
        cmocka_unit_test(a_plan_that_does_not_fit_is_refused_with_every_size),
        cmocka_unit_test(room_for_pages_leaves_what_a_rank_has_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
