/* SPDX-License-Identifier: Apache-2.0 */
/* executor_cost.c - what it costs to run a kernel in an executor instead of in the server.
 *
 *   WHET_SOURCE_ROOT=$PWD build/tests/executor_cost MODEL.gguf
 *
 * Not a test: it prints the table in docs/lab/2026-11-26-cpu-costs-and-gains.md. One object that
 * computes nothing is loaded twice, as the program's own and as a language model's, and both run in
 * turns on the same inputs: what is left is the hand-over and the copies.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/capture.h"
#include "engine/cpu/executor.h"

enum { PAIRS = 400, TOKENS = 512, THREADS_MOST = 64 };

static const char source[] =
    "#include \"kernels/args.h\"\n"
    "static void run(const void *args, const struct team *t) { (void)args; (void)t; }\n"
    "static int64_t scratch(int32_t m, int32_t size) { return 0 * m * size; }\n"
    "const struct cpu_kernel whet_kernel = {WHET_CPU_ABI, REGION, 4096, run, scratch, 0, 0, 0};\n";

static char folder[] = "/tmp/whet-cost-XXXXXX";

static struct kernel *load(struct backend *b, enum region r, bool text)
{
    static char path[128];
    struct err e = {""};
    const char *root = getenv("WHET_SOURCE_ROOT");
    char *file = xasprintf("%s/empty.c", folder);
    FILE *f = fopen(file, "w");
    snprintf(path, sizeof path, "%s/empty-%d.so", folder, (int)r);
    char *command = xasprintf("cc -O2 -shared -fPIC -I%s -DREGION=%d -o %s %s", root ? root : ".",
                              (int)r, path, file);
    if (f)
        fputs(source, f);
    if (!f || fclose(f) != 0 || system(command) != 0)
        exit(1);
    free(command);
    free(file);
    struct kernel_object o = {.path = path,
                              .region = r,
                              .origin = text ? ORIGIN_AGENT : ORIGIN_TEMPLATE,
                              .id = "0123456789abcdef",
                              .name = "nothing",
                              .text = text};
    struct kernel *k = backend_cpu.load(b, &o, &e);
    if (!k)
        fprintf(stderr, "%s\n", e.msg);
    return k;
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median_us(float *ns)
{
    qsort(ns, PAIRS, sizeof *ns, ascending);
    return (double)ns[PAIRS / 2] * 1e-3;
}

static int measure(struct backend *b, struct dispatch *d, const struct model *m, enum region r,
                   int32_t tokens)
{
    struct err e = {""};
    float *a_ns = xcalloc(2 * PAIRS, sizeof *a_ns);
    const struct model_shape *s = &m->shape;
    int64_t cols = r == REGION_MLP_OUT ? s->ffn : (int64_t)s->heads * s->head_dim;
    struct capture c = {.region = r, .m = tokens, .spans = 1, .context = tokens};
    c.x = xcalloc((size_t)(tokens * s->hidden), sizeof *c.x);
    c.in = xcalloc((size_t)(tokens * cols), sizeof *c.in);
    struct kernel *in = load(b, r, false), *out = in ? load(b, r, true) : NULL;
    struct bench_job job = {.slot = dispatch_slot(d, r, 0, tokens, tokens),
                            .a = in,
                            .b = out,
                            .inputs = &c,
                            .want = PAIRS,
                            .a_ns = a_ns,
                            .b_ns = a_ns + PAIRS};
    int rc = out ? 0 : -1;
    while (rc == 0)
        rc = backend_cpu.bench(b, &job, 100000000, &e);
    if (out)
        backend_cpu.bench_end(b, &job);
    if (rc == 1) {
        double here = median_us(a_ns), there = median_us(a_ns + PAIRS);
        printf("| %-8s | %4d | %6.1f | %6.1f | %6.1f |\n", region_name(r), tokens, here, there,
               there - here);
    } else {
        fprintf(stderr, "%s: %s\n", region_name(r), e.msg);
    }
    backend_cpu.unload(b, out);
    backend_cpu.unload(b, in);
    capture_free(&c);
    free(a_ns);
    return rc == 1 ? 0 : -1;
}

int main(int argc, char **argv)
{
    static const int32_t tokens[] = {1, 8, 64, 512};
    const struct kernel *eager[REGION_COUNT];
    struct err e = {""};
    if (argc > 1 && strcmp(argv[1], "executor") == 0)
        return executor_main(argc - 1, argv + 1);
    struct model *m = argc > 1 ? model_open(argv[1], false, NULL, NULL, &e) : NULL;
    int threads = argc > 2 ? atoi(argv[2]) : 0;
    struct backend_options o = {.threads = threads < THREADS_MOST ? threads : THREADS_MOST,
                                .kv_pages = 64,
                                .max_tokens = TOKENS,
                                .max_rows = 8,
                                .pack_bytes = 1 << 20,
                                .texts = true};
    struct backend *b = m ? backend_cpu.open(m, &o, &e) : NULL;
    if (!b || !mkdtemp(folder)) {
        fprintf(stderr, "usage: executor_cost MODEL [THREADS]\n%s\n", e.msg);
        return 1;
    }
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = backend_cpu.eager(b, (enum region)r);
    struct dispatch *d = dispatch_open(eager, NULL);
    backend_cpu.set_dispatch(b, d);
    puts("| region   | tokens | in the server, us | in an executor, us | difference, us |");
    puts("|---|---:|---:|---:|---:|");
    int rc = 0;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        rc |= measure(b, d, m, REGION_ATTN_OUT, tokens[i]);
        rc |= measure(b, d, m, REGION_MLP_OUT, tokens[i]);
    }
    dispatch_close(d);
    backend_cpu.close(b);
    model_close(m);
    char *command = xasprintf("rm -r %s", folder);
    rc |= system(command);
    free(command);
    return rc == 0 ? 0 : 1;
}
