/* cuda_tables.h - the CUDA templates' knob tables as data, for the tests that need no specializer.
 */
#ifndef WHET_TESTS_CUDA_TABLES_H
#define WHET_TESTS_CUDA_TABLES_H

#include <stdbool.h>
#include <stdint.h>

enum { KNOBS = 24, VALUES = 16 };

/* Values of the SHAPE rows of templates_cuda.def for one build. */
struct facts {
    int REGION, M_MAX, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, HAS_BIAS, HAS_QK_NORM, SMS;
};

struct knob {
    const char *name;
    int first, n, values[VALUES];
};

/* One file of kernels: its knobs; NULL or why a point is illegal; the knobs of its START row. */
struct table {
    const char *file;
    const struct knob *knob;
    int knobs;
    const char *(*legal)(const struct facts *f, const int *p);
    const char *(*start)(const struct facts *f);
};

/* One TEMPLATE row. */
struct cuda_template {
    const char *id;
    int region;
    const char *file;
    int m_min, m_max;
};
extern const struct cuda_template cuda_templates[];
extern const int cuda_template_count;

/* The table of "gemv"; NULL if there is none. */
const struct table *table_of(const char *file);

void point_defaults(const struct table *t, int *p);
/* Applies "NAME=value ..."; false if a name or value is not in the table. */
bool point_apply(const struct table *t, const char *knobs, int *p);
/* A legal point by chance, which moves on with *z; false if a million tries found none. */
bool point_random(const struct table *t, const struct facts *f, uint32_t *z, int *p);
/* What differs from the defaults, as "NAME=value ..."; "defaults" if nothing does. */
void table_text(const struct table *t, const int *p, char *out, int size);
/* "-DNAME=value" of every SHAPE and knob into text[0..]; returns how many, at most OPTIONS_MOST. */
enum { OPTIONS_MOST = 48, OPTION_SIZE = 64 };
int point_options(const struct table *t, const struct facts *f, const int *p,
                  char text[OPTIONS_MOST][OPTION_SIZE]);

#endif
