/* SPDX-License-Identifier: Apache-2.0 */
/* plot.c - regret as SVG: one row of panels a slot, against samples and against seconds.
 *
 * Both axes are logarithmic; a line is the mean over seeds, the band behind it the 10th to 90th
 * percentile. Regret below the axis' foot is drawn on it. Colours are CSS variables, so that the
 * same file is readable in light and dark. No library: an SVG of lines is text.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "tune/ablate.h"

enum { WIDTH = 400, HEIGHT = 190, LEFT = 54, TOP = 62, GAP = 66, ROW = 252, STEPS = 60 };
#define FOOT 0.003 /* regret */

static const char style[] =
    "<style>\n"
    "svg{--ink:#1b1f24;--grid:#d4d8dd;--paper:#ffffff;--c0:#0057b8;--c1:#c2410c;--c2:#15803d;"
    "--c3:#7e22ce;--c4:#52606d;--c5:#b91c1c;--c6:#0e7490;--c7:#a16207;"
    "--c8:#be185d;--c9:#4d7c0f;--c10:#4338ca;--c11:#854d0e;--c12:#0f766e;--c13:#9f1239;background:"
    "var(--paper);"
    "font:12px system-ui,sans-serif}\n"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6e8eb;--grid:#3a414a;--paper:#14171b;"
    "--c0:#6cb6ff;--c1:#ff9c6a;--c2:#66d389;--c3:#cfa6ff;--c4:#a3adb8;--c5:#ff8080;--c6:#5fd4e6;"
    "--c7:#e6c34d;--c8:#ff8fc0;--c9:#b6e36a;--c10:#a5b4fc;--c11:#d9a86c;--c12:#5eead4;--c13:#"
    "fda4af}}\n"
    "text{fill:var(--ink)}.g{stroke:var(--grid)}.l{fill:none;stroke-width:2}.b{opacity:.13}\n"
    "</style>\n";

/* A panel: where it is, and what its axes span. */
struct panel {
    FILE *f;
    double x, y, from, to, top; /* top: largest regret */
    bool seconds;
};

static double place_x(const struct panel *p, double v)
{
    return p->x + WIDTH * log(v / p->from) / log(p->to / p->from);
}

static double place_y(const struct panel *p, double regret)
{
    double r = fmax(regret, FOOT);
    return p->y + HEIGHT * (1 - log(r / FOOT) / log(p->top / FOOT));
}

static void draw_axes(const struct panel *p, const char *title)
{
    static const double ticks[] = {0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30};
    fprintf(p->f, "<text x=\"%.0f\" y=\"%.0f\" font-weight=\"600\">%s</text>\n", p->x, p->y - 10,
            title);
    for (size_t i = 0; i < sizeof ticks / sizeof *ticks; i++) {
        if (ticks[i] > p->top)
            continue;
        double y = place_y(p, ticks[i]);
        fprintf(p->f,
                "<path class=\"g\" d=\"M%.0f %.1fH%.0f\"/><text x=\"%.0f\" y=\"%.1f\" "
                "text-anchor=\"end\">%g %%</text>\n",
                p->x, y, p->x + WIDTH, p->x - 6, y + 4, ticks[i] * 100);
    }
    for (int decade = -1; decade < 5; decade++)
        for (int of = 1; of <= 5; of += of == 1 ? 1 : 3) {
            double v = of * pow(10, decade);
            if (v < p->from || v > p->to)
                continue;
            fprintf(p->f,
                    "<path class=\"g\" d=\"M%.1f %.0fv%d\"/><text x=\"%.1f\" y=\"%.0f\" "
                    "text-anchor=\"middle\">%g</text>\n",
                    place_x(p, v), p->y, HEIGHT, place_x(p, v), p->y + HEIGHT + 15, v);
        }
    fprintf(p->f, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n",
            p->x + WIDTH / 2.0, p->y + HEIGHT + 30, p->seconds ? "seconds" : "samples");
}

static void draw_variant(const struct panel *p, const struct ablation *a, const struct variant *v,
                         int colour)
{
    struct band band[STEPS + 1];
    double x[STEPS + 1];
    for (int i = 0; i <= STEPS; i++) {
        double at = p->from * pow(p->to / p->from, (double)i / STEPS);
        if (!p->seconds)
            at = floor(at + 1e-9);
        x[i] = place_x(p, fmax(at, p->from));
        band[i] = p->seconds ? variant_regret(a, v, -1, at) : variant_regret(a, v, (int)at, -1);
    }
    fprintf(p->f, "<path class=\"b\" style=\"fill:var(--c%d)\" d=\"", colour);
    for (int i = 0; i <= STEPS; i++)
        fprintf(p->f, "%s%.0f %.0f", i ? "L" : "M", x[i], place_y(p, band[i].high));
    for (int i = STEPS; i >= 0; i--)
        fprintf(p->f, "L%.0f %.0f", x[i], place_y(p, band[i].low));
    fprintf(p->f, "Z\"/>\n<path class=\"l\" style=\"stroke:var(--c%d)\"%s d=\"", colour,
            colour % 2 ? " stroke-dasharray=\"7 3\"" : "");
    for (int i = 0; i <= STEPS; i++)
        fprintf(p->f, "%s%.1f %.1f", i ? "L" : "M", x[i], place_y(p, band[i].mean));
    fputs("\"/>\n", p->f);
}

/* Is the variant in this figure? Its name there. */
typedef const char *name_fn(const struct variant *v);

static const char *as_strategy(const struct variant *v)
{
    return v->adviser == SIM_HEURISTIC ? v->strategy : NULL;
}

static const char *as_adviser(const struct variant *v)
{
    return strcmp(v->strategy, "template") == 0 ? sim_adviser_name(v->adviser) : NULL;
}

static void draw_legend(FILE *f, const struct ablation *a, name_fn *name)
{
    enum { ENTRY = 148, IN_ROW = 6 };
    int n = 0;
    for (int i = 0; i < a->variants && a->variant[i].table == a->variant[0].table; i++) {
        const char *text = name(&a->variant[i]);
        if (!text)
            continue;
        int x = LEFT + n % IN_ROW * ENTRY, y = 18 + n / IN_ROW * 18;
        fprintf(f,
                "<path class=\"l\" style=\"stroke:var(--c%d)\"%s d=\"M%d %dh26\"/>"
                "<text x=\"%d\" y=\"%d\">%s</text>\n",
                n, n % 2 ? " stroke-dasharray=\"7 3\"" : "", x, y, x + 32, y + 4, text);
        n++;
    }
}

static void draw_panels(FILE *f, const struct ablation *a, const struct table *t, int row,
                        name_fn *name)
{
    double eager = fmax(1, table_best(t, NULL)) - 1;
    for (int k = 0; k < 2; k++) {
        struct panel p = {.f = f,
                          .x = LEFT + k * (WIDTH + GAP),
                          .y = TOP + 20 + row * ROW,
                          .from = 1,
                          .to = k ? a->budget_s : fmin(space_size(t->space), 200),
                          .top = fmax(eager, 0.1),
                          .seconds = k == 1};
        char title[120];
        snprintf(title, sizeof title, "%s: regret, eager is at %.0f %%", t->slot, 100 * eager);
        draw_axes(&p, title);
        int colour = 0;
        for (int i = 0; i < a->variants; i++)
            if (a->variant[i].table == t && name(&a->variant[i]))
                draw_variant(&p, a, &a->variant[i], colour++);
    }
}

static int write_figure(const struct ablation *a, const char *prefix, const char *what,
                        name_fn *name, struct err *err)
{
    char *path = xasprintf("%s-%s.svg", prefix, what);
    FILE *f = fopen(path, "w");
    if (f) {
        int wide = LEFT + 2 * WIDTH + GAP + 20, high = TOP + 20 + a->tables->n * ROW;
        fprintf(f,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                "role=\"img\" aria-label=\"Regret by %s\">\n%s",
                wide, high, wide, what, style);
        fprintf(f, "<rect width=\"%d\" height=\"%d\" style=\"fill:var(--paper)\"/>\n", wide, high);
        draw_legend(f, a, name);
        for (int i = 0; i < a->tables->n; i++)
            draw_panels(f, a, &a->tables->table[i], i, name);
        fputs("</svg>\n", f);
    }
    bool bad = !f || ferror(f) || fclose(f) != 0;
    if (bad)
        err_set(err, "%s cannot be written: %s", path, strerror(errno));
    free(path);
    return bad ? -1 : 0;
}

int ablation_write_svg(const struct ablation *a, const char *prefix, struct err *err)
{
    return write_figure(a, prefix, "strategies", as_strategy, err) != 0 ||
                   write_figure(a, prefix, "advisers", as_adviser, err) != 0
               ? -1
               : 0;
}
