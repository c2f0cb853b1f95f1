/* SPDX-License-Identifier: Apache-2.0 */
/* What a language model is told: its form is pinned by a golden file, its size is bounded, and
 * nothing of the operator's machine is in it. */
#include "tests/unit/unit.h"

#include "tests/unit/specializer/advice_world.h"

/* Knobs are named in capitals. Which ones a document has is the machine's matter. */
static bool knobs(const cJSON *v)
{
    return v->child && v->child->string[0] >= 'A' && v->child->string[0] <= 'Z';
}

/* The form of a document: its fields, with types in the place of values, and one element of a list
 * (its first) or one knob in the place of all. */
static cJSON *form_of(const cJSON *v)
{
    const cJSON *child;
    if (cJSON_IsObject(v)) {
        cJSON *o = cJSON_CreateObject();
        if (knobs(v)) {
            cJSON_AddItemToObject(o, "KNOB", form_of(v->child));
            return o;
        }
        cJSON_ArrayForEach(child, v) cJSON_AddItemToObject(o, child->string, form_of(child));
        return o;
    }
    if (cJSON_IsArray(v)) {
        cJSON *list = cJSON_CreateArray();
        if (v->child)
            cJSON_AddItemToArray(list, form_of(v->child));
        return list;
    }
    return cJSON_CreateString(cJSON_IsNumber(v)   ? "number"
                              : cJSON_IsString(v) ? "string"
                              : cJSON_IsBool(v)   ? "bool"
                                                  : "null");
}

static char *read_golden(const char *name)
{
    char path[400];
    const char *root = getenv("WHET_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/tests/golden/%s", root ? root : ".", name);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    char *text = calloc(1, 65536);
    assert_true(fread(text, 1, 65535, in) > 0);
    fclose(in);
    return text;
}

static void assert_form(const char *document, const char *golden_name)
{
    cJSON *o = cJSON_Parse(document);
    assert_non_null(o);
    cJSON *form = form_of(o);
    char *now = cJSON_Print(form), *golden = read_golden(golden_name);
    cJSON *want = cJSON_Parse(golden);
    assert_non_null(want);
    char *then = cJSON_Print(want);
    assert_string_equal(now, then);
    cJSON_Delete(o);
    cJSON_Delete(form);
    cJSON_Delete(want);
    free(now);
    free(then);
    free(golden);
}

static void request_has_the_form_of_the_golden_file(void **unused)
{
    (void)unused;
    struct world w;
    world_open(&w, REGION_MLP_OUT, 4);
    world_results(&w);
    char *text = adviser_request_text(&w.request, &w.heuristic);
    assert_non_null(text);
    assert_form(text, "adviser_request.json");
    free(text);
    struct lineage l = {.id = {w.heuristic.priority[0], w.heuristic.priority[1], -1},
                        .score = {1, 0.5, 0},
                        .measured = {true, false, false}};
    text = adviser_moves_text(&w.request, &l, 1);
    assert_non_null(text);
    assert_form(text, "adviser_moves.json");
    free(text);
    world_close(&w);
}

static void request_about_a_gpu_has_a_form_of_its_own(void **unused)
{
    (void)unused;
    struct world w;
    world_open_on(&w, &world_gpu, REGION_ATTN_IN, 8);
    world_results(&w);
    char *text = adviser_request_text(&w.request, &w.heuristic);
    assert_non_null(text);
    assert_form(text, "adviser_request_cuda.json");
    /* What an expert would ask of a GPU, and nothing of this CPU. */
    assert_non_null(strstr(text, "\"multiprocessors\":132"));
    assert_non_null(strstr(text, "\"shared_kib_a_block_at_most\":227"));
    assert_non_null(strstr(text, "\"registers_a_multiprocessor\":6.554e+04"));
    assert_non_null(strstr(text, "q_norm"));
    assert_null(strstr(text, "q_bias"));
    assert_null(strstr(text, "avx2"));
    assert_null(strstr(text, "l1d"));
    free(text);
    world_close(&w);
    world_open_on(&w, &world_gpu, REGION_ATTN, 8);
    text = adviser_request_text(&w.request, &w.heuristic);
    assert_non_null(strstr(text, "\"name\":\"k_pages\",\"role\":\"in\",\"shape\":[\"pages\",8,"));
    assert_non_null(strstr(text, ",128],\"dtype\":\"BF16\""));
    free(text);
    world_close(&w);
}

/* Keys and values are bf16 in a GPU's pages, floats in a CPU's. */
static void request_counts_the_bytes_of_its_machine(void **unused)
{
    (void)unused;
    const struct machine *const machine[] = {&world_machine, &world_gpu};
    const double bytes[] = {552960 + 8000, 552960 + 4000};
    for (int i = 0; i < 2; i++) {
        struct world w;
        world_open_on(&w, machine[i], REGION_ATTN, 1);
        w.request.work.kv_bytes = 8000;
        char *text = adviser_request_text(&w.request, &w.heuristic);
        cJSON *o = cJSON_Parse(text);
        const cJSON *region = cJSON_GetArrayItem(cJSON_GetObjectItem(o, "regions"), 0);
        double said = cJSON_GetObjectItem(region, "bytes")->valuedouble;
        assert_float_equal(said, bytes[i], 100);
        cJSON_Delete(o);
        free(text);
        world_close(&w);
    }
}

static void request_says_what_was_measured(void **unused)
{
    (void)unused;
    struct world w;
    world_open(&w, REGION_MLP_OUT, 4);
    search_learn(&w.search, 11, 2.5);
    search_learn(&w.search, 12, 0.25);
    char *text = adviser_request_text(&w.request, &w.heuristic), id[ID_TEXT];
    cJSON *o = cJSON_Parse(text);
    const cJSON *region = cJSON_GetArrayItem(cJSON_GetObjectItem(o, "regions"), 0);
    assert_string_equal(cJSON_GetObjectItem(region, "region")->valuestring, "mlp_out/m4");
    assert_true(cJSON_GetObjectItem(region, "roofline_us")->valuedouble == 33);
    assert_true(cJSON_GetObjectItem(region, "incumbent_us")->valuedouble == 61);
    const cJSON *results = cJSON_GetObjectItem(region, "results");
    const cJSON *best = cJSON_GetArrayItem(cJSON_GetObjectItem(results, "best"), 0);
    const cJSON *worst = cJSON_GetArrayItem(cJSON_GetObjectItem(results, "worst"), 0);
    adviser_id_text(w.space, 11, id);
    assert_string_equal(cJSON_GetObjectItem(best, "id")->valuestring, id);
    assert_true(cJSON_GetObjectItem(best, "speed")->valuedouble == 2.5);
    adviser_id_text(w.space, 12, id);
    assert_string_equal(cJSON_GetObjectItem(worst, "id")->valuestring, id);
    const cJSON *candidates = cJSON_GetObjectItem(region, "candidates"), *c;
    assert_true(cJSON_GetArraySize(candidates) >= 12);
    cJSON_ArrayForEach(c, candidates) /* none that was tried, all of them in the space */
    {
        int32_t found = adviser_id_find(w.space, cJSON_GetObjectItem(c, "id")->valuestring);
        assert_true(found >= 0 && found != 11 && found != 12);
    }
    cJSON_Delete(o);
    free(text);
    world_close(&w);
}

static const cJSON *region_of(cJSON *o)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItem(o, "regions"), 0);
}

static const cJSON *knob_told(const cJSON *region, const char *name)
{
    const cJSON *templates = cJSON_GetObjectItem(cJSON_GetObjectItem(region, "space"), "templates");
    const cJSON *k;
    cJSON_ArrayForEach(
        k, cJSON_GetObjectItem(cJSON_GetArrayItem(templates, 0),
                               "knobs")) if (strcmp(cJSON_GetObjectItem(k, "knob")->valuestring,
                                                    name) == 0) return k;
    return NULL;
}

/* With one token a step TOKENS cannot vary; the formula does not see PREP or SPLIT. */
static void request_says_what_cannot_vary_and_what_is_not_seen(void **unused)
{
    (void)unused;
    struct world w;
    world_open(&w, REGION_MLP_OUT, 1);
    char *text = adviser_request_text(&w.request, &w.heuristic);
    cJSON *o = cJSON_Parse(text);
    const cJSON *region = region_of(o), *tokens = knob_told(region, "TOKENS");
    assert_int_equal(cJSON_GetObjectItem(tokens, "only")->valueint, 1);
    assert_null(cJSON_GetObjectItem(tokens, "values"));
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(knob_told(region, "SPLIT"), "blind")));
    assert_null(cJSON_GetObjectItem(knob_told(region, "ISA"), "blind"));
    assert_null(cJSON_GetObjectItem(knob_told(region, "PACK"), "blind")); /* never changes alone */
    cJSON_Delete(o);
    free(text);
    world_close(&w);
}

/* Each entry stands for untried points that are predicted alike; no two entries of a family are. */
static void candidates_that_tie_are_one(void **unused)
{
    (void)unused;
    struct world w;
    world_open(&w, REGION_MLP_IN, 1);
    char *text = adviser_request_text(&w.request, &w.heuristic);
    cJSON *o = cJSON_Parse(text);
    const cJSON *list = cJSON_GetObjectItem(region_of(o), "candidates"), *c;
    double *last = calloc((size_t)space_families() + 1, sizeof *last);
    int ties = 0;
    cJSON_ArrayForEach(c, list)
    {
        int32_t id = adviser_id_find(w.space, cJSON_GetObjectItem(c, "id")->valuestring);
        int family = space_family(w.space, id), members = 0;
        double predicted = space_predicted(w.space, id);
        assert_true(last[family] == 0 || predicted > last[family] * 1.0019);
        last[family] = predicted;
        if (!cJSON_HasObjectItem(c, "alike"))
            continue;
        ties++;
        for (int32_t i = 0; i < space_size(w.space); i++)
            members += space_family(w.space, i) == family &&
                       space_predicted(w.space, i) >= predicted * (1 - 1e-9) &&
                       space_predicted(w.space, i) <= predicted * 1.002;
        assert_int_equal(cJSON_GetObjectItem(c, "alike")->valueint, members);
        assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(c, "alike_in")) > 0);
    }
    assert_true(ties >= 4);
    free(last);
    cJSON_Delete(o);
    free(text);
    world_close(&w);
}

/* What is called a step is legal, and one knob away. */
static void steps_are_legal_neighbours(void **unused)
{
    (void)unused;
    struct world w;
    world_open(&w, REGION_MLP_OUT, 4);
    search_learn(&w.search, 11, 2.5);
    char *text = adviser_request_text(&w.request, &w.heuristic);
    cJSON *o = cJSON_Parse(text);
    const cJSON *best = cJSON_GetArrayItem(
        cJSON_GetObjectItem(cJSON_GetObjectItem(region_of(o), "results"), "best"), 0);
    const struct template *t = space_template(w.space, 11);
    const cJSON *knob, *value;
    int steps = 0;
    cJSON_ArrayForEach(knob, cJSON_GetObjectItem(best, "steps")) cJSON_ArrayForEach(value, knob)
    {
        struct point p;
        space_point(w.space, 11, &p);
        p.value[template_knob(t, knob->string)] = value->valueint;
        int32_t to = space_find(w.space, t, &p);
        assert_true(to >= 0 && space_distance(w.space, 11, to) == 1);
        steps++;
    }
    assert_true(steps > 3);
    cJSON_Delete(o);
    free(text);
    struct lineage l = {.id = {11, -1, -1}, .score = {1}, .measured = {true}};
    text = adviser_moves_text(&w.request, &l, 1);
    o = cJSON_Parse(text);
    const cJSON *nodes = cJSON_GetObjectItem(region_of(o), "nodes");
    const cJSON *node = cJSON_GetObjectItem(cJSON_GetArrayItem(nodes, 0), "node");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(node, "steps")), steps);
    cJSON_Delete(o);
    free(text);
    world_close(&w);
}

static void predictions_say_whether_they_were_corrected(void **unused)
{
    (void)unused;
    struct world w;
    struct point p;
    world_open(&w, REGION_MLP_OUT, 4);
    char *text = adviser_request_text(&w.request, &w.heuristic);
    assert_non_null(strstr(text, "\"predictions\":\"a formula alone"));
    free(text);
    space_point(w.space, 11, &p);
    cost_learn(&w.cost, space_template(w.space, 11), &p, space_facts(w.space), 50e-6);
    text = adviser_request_text(&w.request, &w.heuristic);
    assert_non_null(strstr(text, "corrected by 1 measurement"));
    free(text);
    world_close(&w);
}

/* Both questions, with all that there can be to say: they fit, and still name points. */
static void fits(const struct machine *machine, enum region region, int m)
{
    struct world w;
    world_open_on(&w, machine, region, m);
    if (space_size(w.space) > 0) {
        world_results(&w);
        struct lineage l[MOVES_MOST];
        for (int i = 0; i < MOVES_MOST; i++)
            l[i] = (struct lineage){.id = {0, 1 % space_size(w.space), -1}, .score = {1, 0.5, 0}};
        char *text = adviser_request_text(&w.request, &w.heuristic);
        char *moves = adviser_moves_text(&w.request, l, MOVES_MOST);
        assert_non_null(text);
        assert_non_null(moves);
        assert_true(strlen(text) < REQUEST_BYTES && strlen(moves) < REQUEST_BYTES);
        assert_non_null(strstr(text, "\"candidates\":[{"));
        if (getenv("WHET_TEST_VERBOSE"))
            print_message("%-9s m=%-4d %s: %zu bytes, moves %zu\n", region_name(region), m,
                          machine->device, strlen(text), strlen(moves));
        free(text);
        free(moves);
    }
    world_close(&w);
}

static void request_is_below_16_kib_for_every_region(void **unused)
{
    (void)unused;
    static const int m[] = {1, 4, 16, 48, 128, 512, 2048};
    static const int devices_m[] = {1, 8, 32, 64};
    enum { EVERY = SANITIZED ? 3 : 1 }; /* a GPU's space takes seconds there */
    for (int r = REGION_ATTN_IN; r <= REGION_HEAD; r++) {
        for (size_t i = 0; i < sizeof m / sizeof *m; i++)
            if ((r + (int)i) % EVERY == 0)
                fits(&world_machine, (enum region)r, m[i]);
        for (size_t i = 0; i < sizeof devices_m / sizeof *devices_m; i++)
            if ((r + (int)i) % EVERY == 0)
                fits(&world_gpu, (enum region)r, devices_m[i]);
    }
}

static void a_long_document_loses_its_lists_before_it_is_given_up(void **unused)
{
    (void)unused;
    static char name[REQUEST_BYTES + 1];
    struct world w;
    world_open(&w, REGION_MLP_OUT, 4);
    world_results(&w);
    w.request.incumbent = name;
    memset(name, 'n', 10000);
    char *text = adviser_request_text(&w.request, &w.heuristic);
    assert_non_null(text);
    assert_true(strlen(text) < REQUEST_BYTES);
    assert_non_null(strstr(text, "\"candidates\":[{"));
    free(text);
    memset(name, 'n', REQUEST_BYTES);
    assert_null(adviser_request_text(&w.request, &w.heuristic));
    world_close(&w);
}

static void request_carries_no_path(void **unused)
{
    (void)unused;
    struct world w;
    world_open(&w, REGION_MLP_IN, 1);
    world_results(&w);
    char *text = adviser_request_text(&w.request, &w.heuristic);
    assert_non_null(strstr(text, "k.c:12: error 0"));
    assert_null(strstr(text, "somebody"));
    assert_null(strstr(text, ".cache"));
    free(text);
    world_close(&w);
}

static void every_point_has_a_name_that_finds_it_again(void **unused)
{
    (void)unused;
    struct world w;
    char id[ID_TEXT], longer[ID_TEXT + 8];
    world_open(&w, REGION_MLP_OUT, 8);
    for (int32_t i = 0; i < space_size(w.space); i++) {
        adviser_id_text(w.space, i, id);
        assert_int_equal(adviser_id_find(w.space, id), i);
        snprintf(longer, sizeof longer, "%s,0", id);
        assert_int_equal(adviser_id_find(w.space, longer), -1);
        snprintf(longer, sizeof longer, "%s ", id);
        assert_int_equal(adviser_id_find(w.space, longer), -1);
        id[strlen(id) - 1] = 0;
        assert_int_not_equal(adviser_id_find(w.space, id), i);
    }
    static const char *const none[] = {"",
                                       ":",
                                       "mlp_out",
                                       "mlp_out:",
                                       "mlp_out:1",
                                       "nothing:0,0,0,4,1,0,0,0",
                                       "mlp_out:99999999999999999999,0,0,4,1,0,0,0",
                                       "mlp_out: 0,0,0,4,1,0,0,0",
                                       "mlp_out:0,0,0,4,1,0,0,3",
                                       "mlp_in:0,0,0,4,1,0,0,0"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(adviser_id_find(w.space, none[i]), -1);
    world_close(&w);
}

/* In strict structured output every object lists all its properties as required. */
static void assert_strict(const cJSON *schema)
{
    const cJSON *type = cJSON_GetObjectItem(schema, "type"), *child;
    assert_true(cJSON_IsString(type));
    if (strcmp(type->valuestring, "object") == 0) {
        const cJSON *properties = cJSON_GetObjectItem(schema, "properties");
        assert_true(cJSON_IsFalse(cJSON_GetObjectItem(schema, "additionalProperties")));
        assert_int_equal(cJSON_GetArraySize(properties),
                         cJSON_GetArraySize(cJSON_GetObjectItem(schema, "required")));
        cJSON_ArrayForEach(child, properties) assert_strict(child);
    } else if (strcmp(type->valuestring, "array") == 0) {
        assert_strict(cJSON_GetObjectItem(schema, "items"));
    }
}

static void schemas_are_strict(void **unused)
{
    (void)unused;
    struct world w;
    world_open(&w, REGION_ATTN, 16); /* two templates */
    cJSON *reply = adviser_reply_schema(&w.request), *moves = adviser_moves_schema(&w.request);
    assert_strict(reply);
    assert_strict(moves);
    char *text = cJSON_PrintUnformatted(reply);
    assert_non_null(strstr(text, "\"enum\":[\"attn/m16\"]"));
    free(text);
    cJSON_Delete(reply);
    cJSON_Delete(moves);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_has_the_form_of_the_golden_file),
        cmocka_unit_test(request_about_a_gpu_has_a_form_of_its_own),
        cmocka_unit_test(request_counts_the_bytes_of_its_machine),
        cmocka_unit_test(request_says_what_was_measured),
        cmocka_unit_test(request_says_what_cannot_vary_and_what_is_not_seen),
        cmocka_unit_test(candidates_that_tie_are_one),
        cmocka_unit_test(steps_are_legal_neighbours),
        cmocka_unit_test(predictions_say_whether_they_were_corrected),
        cmocka_unit_test(request_is_below_16_kib_for_every_region),
        cmocka_unit_test(a_long_document_loses_its_lists_before_it_is_given_up),
        cmocka_unit_test(request_carries_no_path),
        cmocka_unit_test(every_point_has_a_name_that_finds_it_again),
        cmocka_unit_test(schemas_are_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
