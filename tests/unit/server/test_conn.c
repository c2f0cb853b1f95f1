/* SPDX-License-Identifier: Apache-2.0 */
/* test_conn.c - what a connection hands to libuv; the rest of it is seen in test_serving*.c. */
#include "tests/unit/unit.h"

#include <sys/mman.h>

#include "server/conn.h"
#include "server/server.h"

static struct {
    uv_buf_t tried, written;
    int takes; /* what uv_try_write() says */
} io;

int __wrap_uv_try_write(uv_stream_t *stream, const uv_buf_t *bufs, unsigned n);
int __wrap_uv_write(uv_write_t *req, uv_stream_t *stream, const uv_buf_t *bufs, unsigned n,
                    uv_write_cb done);

int __wrap_uv_try_write(uv_stream_t *stream, const uv_buf_t *bufs, unsigned n)
{
    (void)stream;
    assert_int_equal(n, 1);
    io.tried = *bufs;
    return io.takes;
}

int __wrap_uv_write(uv_write_t *req, uv_stream_t *stream, const uv_buf_t *bufs, unsigned n,
                    uv_write_cb done)
{
    (void)req, (void)stream, (void)done;
    assert_int_equal(n, 1);
    io.written = *bufs;
    return 0;
}

static void conn_writes_answers_of_more_than_4_gib(void **state)
{
    (void)state;
    static const size_t sizes[] = {(size_t)1 << 32, ((size_t)5 << 30) + 7, 1 << 20};
    static const int takes[] = {0x7ffff000, 1 << 16, 0, UV_EAGAIN};
    static struct server srv;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof takes / sizeof *takes; k++) {
            if (takes[k] > 0 && (size_t)takes[k] > sizes[i])
                continue;
            struct conn c = {.srv = &srv};
            size_t taken = takes[k] > 0 ? (size_t)takes[k] : 0;
            /* Nobody reads these bytes, so no memory stands behind them. */
            char *p =
                mmap(NULL, sizes[i], PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            assert_true(p != MAP_FAILED);
            c.out = (struct buf){.p = p, .n = sizes[i], .room = sizes[i]};
            io.takes = takes[k];
            conn_flush(&c);
            assert_true(c.writing);
            assert_ptr_equal(io.tried.base, p);
            assert_true(io.tried.len == sizes[i]);
            assert_ptr_equal(io.written.base, p + taken);
            assert_true(io.written.len == sizes[i] - taken);
            munmap(p, sizes[i]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conn_writes_answers_of_more_than_4_gib),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
