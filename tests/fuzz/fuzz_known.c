/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_known.c - any bytes as a text of points that won on other machines (kernels/known). What is
 * read of it are rows of this program's own templates, with distances that are numbers, for every
 * slot that is asked about; and what may be written of a machine is read again.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/search/known.c"
#include "tests/unit/specializer/shapes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

/* Every knob has one of its values: the point is written, and read again, as the same. */
static void see_point(const struct known_point *p, const struct known_slot *slot)
{
    char text[1024];
    struct point again;
    demand(p->template && strlen(p->device) < sizeof((struct origin_lines *)0)->device);
    demand(template_fits(p->template, p->template->machine, (enum region)slot->facts->REGION, 1) ||
           p->distance > 0); /* of another bucket */
    point_text(p->template, &p->point, text, sizeof text);
    demand(point_parse(p->template, text, &again, NULL) == 0);
    demand(memcmp(again.value, p->point.value, (size_t)p->template->knobs * sizeof *again.value) ==
           0);
}

static void ask(const struct known *k, struct facts *f, int32_t m, int32_t context)
{
    enum { MOST = 8 };
    struct known_point found[MOST];
    struct known_slot slot = {f, m, context, 2, NUMERICS_TOLERANCE, "AMD EPYC"};
    for (int r = 0; r < REGION_NODES; r++) {
        f->REGION = r;
        int n = known_find(k, &slot, found, MOST);
        demand(n >= 0 && n <= MOST && n <= known_rows(k));
        for (int i = 0; i < n; i++) {
            demand(found[i].distance >= 0 && found[i].distance < far);
            demand(isfinite(found[i].speed) && found[i].speed > 0);
            demand(i == 0 || found[i].distance >= found[i - 1].distance);
            see_point(&found[i], &slot);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct facts cpu = {.HAS_AVX2 = 1, .HAS_AVX512 = 1, .HAS_VNNI = 1, SMOLLM_SHAPE};
    struct facts none = {.M_MAX = 1};
    char *text = xmalloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0; /* texts are C strings: there is none behind a zero byte */
    log_set_level(LOG_ERROR);
    struct known *k = xcalloc(1, sizeof *k);
    int left_out = known_add(k, "input", text);
    demand(left_out >= -1 && (left_out >= 0 || known_rows(k) == 0));
    ask(k, &cpu, 1, 256);
    ask(k, &none, 64, 0);
    known_close(k);
    free(text);
    return 0;
}
