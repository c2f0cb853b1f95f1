/* SPDX-License-Identifier: Apache-2.0 */
/* reference.c - what the comparator compares with, computed or found.
 *
 * References are computed after the fact: the arena is filled again with what the kernel was given
 * (filling is repeatable from the seed), eager runs in it, and the oracle computes from the inputs
 * alone, about five multiply-adds a nanosecond. Where all rows of a case would take too long, it
 * sees some of them (check_rows.c), and the others are compared with eager.
 *
 * That is half of what a probe costs, and depends on nothing but the inputs. Those are the same for
 * every candidate of a slot, so the answers are kept (reference_cache.h), by a key that hashes what
 * they are made of: every byte of the inputs as they lie in the arena, model file, layer, rows,
 * this program and the library that multiplies for eager. The kernel cannot reach them: they are
 * read when its process is dead.
 */
#include "specializer/admission/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/cpu/blas.h"
#include "engine/cpu/eager.h"
#include "specializer/admission/check_rows.h"
#include "specializer/admission/reference_cache.h"
#include "specializer/candidate/hash.h"

static const double work_of_eager = 4e9; /* beyond it eager, too, sees only the chosen rows */

float *reference_rows(const struct reference *ref, const float *all, int32_t cols)
{
    float *v = xmalloc((size_t)ref->rows * (size_t)cols * sizeof *v + 1);
    for (int32_t i = 0; i < ref->rows; i++)
        memcpy(v + (int64_t)i * cols, all + (int64_t)ref->row[i] * cols, (size_t)cols * sizeof *v);
    return v;
}

/* ---- computing ------------------------------------------------------------------------------ */

static void alone_barrier(const struct team *team)
{
    (void)team;
}

static void run_eager(enum region r, bool kv_bf16, const void *args, int32_t m)
{
    const struct cpu_kernel *e = eager_cpu_of(r, kv_bf16);
    int64_t bytes = e->scratch_bytes ? e->scratch_bytes(m, 1) : 0;
    struct team alone = {0, 1, alone_barrier, xaligned((size_t)(bytes > 0 ? bytes : 64)), NULL};
    e->run(args, &alone);
    free(alone.scratch);
}

/* True if eager computes the chosen rows alone. */
static bool few_alone(const struct model *model, const struct case_shape *shape)
{
    return shape->region == REGION_ATTN &&
           plan_row_work(model, shape->region, shape->context) * shape->m > work_of_eager;
}

static void compute(const struct model *model, struct test_case *s, struct reference *ref)
{
    const struct case_shape *shape = &s->plan->shape;
    enum region r = shape->region;
    struct row_set few;
    row_set_open(&few, model, r, case_args(s->c), ref->row, ref->rows);
    oracle_run_kv(r, model->shape.kv_bf16, &few.args, &ref->truth);
    if (few_alone(model, shape)) {
        run_eager(r, model->shape.kv_bf16, &few.args, ref->rows);
        size_t bytes = (size_t)ref->rows * (size_t)s->cols[0] * sizeof(float);
        ref->eager[0] = xmalloc(bytes);
        memcpy(ref->eager[0], few.args.attn.a, bytes);
    } else {
        run_eager(r, model->shape.kv_bf16, case_args(s->c), shape->m);
        for (int i = 0; i < OUTPUTS; i++) {
            int32_t m, cols;
            if (!case_output(s->c, i, &m, &cols, &ref->eager_all[i]))
                continue;
            ref->eager[i] = reference_rows(ref, ref->eager_all[i], cols);
        }
    }
    row_set_close(&few);
}

/* ---- keeping -------------------------------------------------------------------------------- */

static uint64_t hash_file(uint64_t h, const char *path)
{
    struct stat st = {0};
    if (stat(path, &st) != 0)
        return hash_text(h, "none");
    const int64_t is[] = {(int64_t)st.st_dev, (int64_t)st.st_ino, (int64_t)st.st_size,
                          (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec};
    return hash_bytes(h, is, sizeof is);
}

uint64_t reference_key(const struct model *model)
{
    uint64_t h = hash_file(HASH_START, "/proc/self/exe");
    h = hash_text(hash_text(h, openblas_open()->config), model->hash);
    return hash_file(h, model->path ? model->path : "");
}

static uint64_t key_of(const struct model *model, const struct test_case *s,
                       const struct reference *ref)
{
    uint64_t inputs = case_digest(s->c), h = reference_key(model);
    h = hash_bytes(h, &inputs, sizeof inputs);
    return hash_mix(hash_bytes(h, ref->row, (size_t)ref->rows * sizeof *ref->row));
}

/* One array of a reference: how large it must be, and where it goes. */
struct piece {
    void **at;
    size_t bytes;
};

/* Its arrays in the order in which they are kept. What belongs to no output has no bytes. */
static int pieces_of(const struct model *model, const struct test_case *s, struct reference *ref,
                     struct piece out[2 * OUTPUTS])
{
    bool few = few_alone(model, &s->plan->shape);
    int n = 0;
    for (int i = 0; i < OUTPUTS; i++) {
        size_t cols = s->rows[i] ? (size_t)s->cols[i] : 0;
        size_t rows = few ? (size_t)ref->rows : (size_t)s->rows[i];
        out[n++] = (struct piece){(void **)&ref->truth.output[i].value,
                                  (size_t)ref->rows * cols * sizeof(double)};
        out[n++] = (struct piece){(void **)(few ? &ref->eager[i] : &ref->eager_all[i]),
                                  rows * cols * sizeof(float)};
    }
    return n;
}

static bool find(const struct check_request *q, const struct test_case *s, uint64_t key,
                 struct reference *ref)
{
    struct piece piece[2 * OUTPUTS];
    int pieces = pieces_of(q->model, s, ref, piece);
    size_t n, wanted = 0, at = 0;
    char *data = reference_cache_read(q->references, key, &n);
    for (int i = 0; i < pieces; i++)
        wanted += piece[i].bytes;
    if (!data || n != wanted) {
        free(data);
        return false;
    }
    for (int i = 0; i < pieces; i++) {
        if (piece[i].bytes) {
            *piece[i].at = xmalloc(piece[i].bytes);
            memcpy(*piece[i].at, data + at, piece[i].bytes);
        }
        at += piece[i].bytes;
    }
    free(data);
    for (int i = 0; i < OUTPUTS && s->rows[i]; i++) {
        ref->truth.outputs = i + 1;
        ref->truth.output[i].rows = ref->rows;
        ref->truth.output[i].cols = s->cols[i];
        if (ref->eager_all[i])
            ref->eager[i] = reference_rows(ref, ref->eager_all[i], s->cols[i]);
    }
    return true;
}

static void keep(const struct check_request *q, const struct test_case *s, uint64_t key,
                 struct reference *ref)
{
    struct piece piece[2 * OUTPUTS];
    int pieces = pieces_of(q->model, s, ref, piece);
    size_t n = 0, at = 0;
    for (int i = 0; i < pieces; i++)
        n += piece[i].bytes;
    char *data = xmalloc(n + 1);
    for (int i = 0; i < pieces; i++) {
        if (piece[i].bytes)
            memcpy(data + at, *piece[i].at, piece[i].bytes);
        at += piece[i].bytes;
    }
    reference_cache_write(q->references, key, data, n);
    free(data);
}

/* ---- both ----------------------------------------------------------------------------------- */

void reference_open(const struct check_request *q, struct test_case *s, int32_t content,
                    struct reference *ref)
{
    const struct case_shape *shape = &s->plan->shape;
    double work = plan_row_work(q->model, shape->region, shape->context);
    double rows = fmin(fmax(work_a_case / work, 2), ROWS_MAX);
    memset(ref, 0, sizeof *ref);
    ref->rows = row_set_choose(shape->m, (int32_t)rows, test_case_seed(s, content), ref->row);
    case_poison(s->c);
    s->filled = -1; /* a kernel had the arena */
    test_case_fill(s, content);
    case_set_packed(s->c, NULL);
    uint64_t key = q->references ? key_of(q->model, s, ref) : 0;
    if (q->references && find(q, s, key, ref))
        return;
    compute(q->model, s, ref);
    if (q->references)
        keep(q, s, key, ref);
}

void reference_close(struct reference *ref)
{
    oracle_free(&ref->truth);
    for (int i = 0; i < OUTPUTS; i++) {
        free(ref->eager[i]);
        free(ref->eager_all[i]);
    }
}
