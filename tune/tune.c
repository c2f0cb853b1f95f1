/* SPDX-License-Identifier: Apache-2.0 */
/* tune.c - `whet tune`: options, and which tool they ask for.
 *
 *   whet tune --model M [--slot S ...] [--seconds N]     the loop without a server: loop.c
 *   whet tune --measure --table F --slot S ...           a table of measured points: measure.c
 *   whet tune --ablate --table F                         strategies on that table: ablate.c
 *   whet tune --report [--table F]                       the cost model against it: report.c
 */
#include "tune/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "tune/ablate.h"
#include "tune/interrupt.h"
#include "tune/loop.h"
#include "tune/measure.h"
#include "tune/options.h"
#include "tune/report.h"

const char tune_usage[] =
    "usage: whet tune --model PATH [--slot mlp_in/m1 ...] [--seconds 600]\n"
    "       whet tune --measure --table FILE --model PATH --slot S ... [--points 300]\n"
    "                 [--build-only] [--seconds 3600]\n"
    "       whet tune --ablate --table FILE [--seeds 20] [--first-seed 1] [--seconds 240]\n"
    "                 [--json FILE] [--drop 0.4] [--svg PREFIX] [--adviser-url URL [--record "
    "FILE]\n"
    "                 [--questions N] [--history 1|2|3] [--at-once]]\n"
    "       whet tune --report [--table FILE | --store FILE] [--json FILE]\n"
    "and options of whet serve; --strategy NAME is --specializer-strategy NAME\n";

static int usage(const char *why)
{
    fprintf(stderr, "whet tune: %s\n\n%s", why, tune_usage);
    return 2;
}

/* ---- measuring ----------------------------------------------------------------------------- */

static int measure(struct tune_options *o, struct err *err)
{
    struct tables t = {.seed = (uint64_t)o->config.specializer_seed};
    int r = -1;
    if (access(o->table, F_OK) == 0 && tables_read(&t, o->table, err) != 0)
        return -1;
    struct session *s = session_open(&o->config, err);
    if (s) {
        interrupt_stops(s);
        r = measure_prepare(s, &t, o->slot, o->slots, o->points ? o->points : 300, err);
        if (r == 0)
            r = measure_run(s, &t, o->seconds > 0 ? o->seconds : 3600, o->build_only, o->table,
                            err);
        interrupt_done();
        session_close(s);
    }
    tables_free(&t);
    return r;
}

/* ---- judging ------------------------------------------------------------------------------- */

static int read_measured(struct tables *t, const char *path, struct err *err)
{
    int measured = 0;
    if (tables_read(t, path, err) != 0)
        return -1;
    for (int i = 0; i < t->n; i++)
        measured += table_count(&t->table[i], POINT_MEASURED);
    if (measured > 0)
        return 0;
    tables_free(t);
    return err_set(err, "%s has no measured point", path);
}

static int ablation(struct tune_options *o, struct err *err)
{
    struct tables t;
    const char *url = o->config.adviser_url;
    if (read_measured(&t, o->table, err) != 0)
        return -1;
    int dropped = tables_drop_undecided(&t);
    if (dropped > 0)
        printf("%d points were never decided and are left out\n", dropped);
    struct ablation a = {
        .tables = &t,
        .seeds = o->seeds ? o->seeds : 20,
        .before = o->first_seed ? o->first_seed - 1 : 0,
        .budget_s = o->seconds > 0 ? o->seconds : 240,
        .drop = o->drop,
        .llm = {.questions = o->questions, .history = o->history, .at_once = o->at_once}};
    if (url && strncmp(url, "replay:", 7) == 0)
        a.llm.recording = url + 7;
    else if (url && *url)
        a.llm.live = live_open(&o->config, o->record, err);
    int r = url && *url && !a.llm.recording && !a.llm.live ? -1 : ablate(&a, err);
    if (r == 0) {
        ablation_print(&a);
        r = o->json ? ablation_write_json(&a, o->json, err) : 0;
        r = r == 0 && o->svg ? ablation_write_svg(&a, o->svg, err) : r;
    }
    ablation_free(&a);
    live_close(a.llm.live);
    tables_free(&t);
    return r;
}

static int report(struct tune_options *o, struct err *err)
{
    struct tables t;
    if (!o->table)
        return report_store(&o->config, o->json, err);
    if (read_measured(&t, o->table, err) != 0)
        return -1;
    int r = report_tables(&t, o->json, err);
    tables_free(&t);
    return r;
}

static const char *missing(const struct tune_options *o)
{
    bool model = o->config.engine_model && *o->config.engine_model;
    if ((o->mode == TUNE_LOOP || o->mode == TUNE_MEASURE) && !model)
        return "--model is missing";
    if ((o->mode == TUNE_MEASURE || o->mode == TUNE_ABLATE) && !o->table)
        return "--table is missing";
    return NULL;
}

static int run(struct tune_options *o, struct err *err)
{
    switch (o->mode) {
    case TUNE_MEASURE:
        return measure(o, err);
    case TUNE_ABLATE:
        return ablation(o, err);
    case TUNE_REPORT:
        return report(o, err);
    case TUNE_LOOP:
        return tune_loop(o, err);
    }
    return -1;
}

int tune_main(int argc, char **argv)
{
    struct tune_options o = {.mode = TUNE_LOOP};
    struct err err = {{0}};
    if (tune_own_flags(&o, &argc, argv, &err) != 0)
        return usage(err.msg);
    int parsed = config_parse(&o.config, argc, argv, &err);
    const char *wrong = parsed < 0 ? err.msg : parsed == 0 ? missing(&o) : NULL;
    if (wrong || parsed > 0) {
        config_free(&o.config);
        return wrong ? usage(wrong) : 0;
    }
    log_set_level((enum log_level)log_level_parse(o.config.log_level));
    int failed = run(&o, &err);
    if (failed)
        fprintf(stderr, "whet tune: %s\n", err.msg);
    config_free(&o.config);
    return failed ? 1 : 0;
}
