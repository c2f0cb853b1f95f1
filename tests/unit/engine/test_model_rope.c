/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_rope.c - what files say of rotary frequencies is read as transformers reads it, and
 * what makes no sense, or what whet does not know, is refused by name. */
#include "tests/unit/engine/model_world.h"

#include "engine/cpu/bind.h"

/* ---- what transformers derives ------------------------------------------------------------- */

static void check_case(const char *name, const struct model_shape *s, const cJSON *entry)
{
    const cJSON *list = cJSON_GetObjectItem(entry, "frequency");
    double f[64], length = cJSON_GetObjectItem(entry, "attention")->valuedouble;

    model_rope_frequencies(s, f);
    assert_int_equal(cJSON_GetArraySize(list), s->head_dim / 2);
    for (int i = 0; i < s->head_dim / 2; i++) {
        double want = cJSON_GetArrayItem(list, i)->valuedouble;
        if (!(fabs(f[i] - want) <= 2e-6 * want))
            fail_msg("%s, frequency %d: %.9g, expected %.9g", name, i, f[i], want);
    }
    if (!(fabs(model_rope_length(s) - length) <= 1e-6))
        fail_msg("%s: cosines times %.9g, expected %.9g", name, model_rope_length(s), length);
}

static void frequencies_and_attention_factors_are_those_of_transformers(void **state)
{
    (void)state;
    cJSON *golden = golden_json("rope-models.json"), *entry;
    int cases = 0;

    cJSON_ArrayForEach(entry, golden)
    {
        const char *name = cJSON_GetObjectItem(entry, "case")->valuestring;
        struct model *m = open_rope_case(entry, true);
        check_case(name, &m->shape, entry);
        assert_int_equal(m->shape.max_context, 512); /* told, or what a factor of 4 reaches */
        model_close(m);
        if (!strcmp(name, "gguf")) {
            m = open_golden_weights("rope-yarn.gguf");
            check_case("rope-yarn.gguf", &m->shape, entry);
            assert_int_equal(m->shape.max_context, 512);
            model_close(m);
        }
        cases++;
    }
    assert_int_equal(cases, 8);
    cJSON_Delete(golden);
}

static void tables_have_the_attention_factor_in_cosine_and_sine(void **state)
{
    (void)state;
    struct model_shape s = {.head_dim = 4, .rope_base = 100};
    float plain[2][6], longer[2][6];

    rope_tables(&s, 3, plain[0], plain[1]);
    s.scaling = (struct rope_scaling){ROPE_YARN, 1, 1, 32, 128, 1.5F, false};
    rope_tables(&s, 3, longer[0], longer[1]);
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < 6; i++)
            assert_true(fabsf(longer[which][i] - 1.5F * plain[which][i]) <= 1e-6F);
    assert_true(plain[0][0] == 1 && longer[0][0] == 1.5F);
}

/* ---- config.json --------------------------------------------------------------------------- */

static const struct {
    const char *rope, *message;
} bad_scalings[] = {
    {"\"yarn\"", "'factor' is missing"},
    {"\"yarn\",\"factor\":null", "'factor' is missing"},
    {"\"yarn\",\"factor\":\"4\"", "'factor' is not a number"},
    {"\"yarn\",\"factor\":0,\"original_max_position_embeddings\":128", "'factor' is 0, expected 1"},
    {"\"yarn\",\"factor\":-4,\"original_max_position_embeddings\":128", "'factor' is -4, expected"},
    {"\"yarn\",\"factor\":1e9,\"original_max_position_embeddings\":128", "'factor' is 1e+09"},
    {"\"yarn\",\"factor\":4", "'original_max_position_embeddings' is missing"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0",
     "'original_max_position_embeddings' is 0"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":-1",
     "'original_max_position_embeddings': -1 is no whole number"},
    {"\"yarn\",\"factor\":4096,\"original_max_position_embeddings\":16777216",
     "context length is 2147483647"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":1", "original context 1"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"rope_theta\":1",
     "a rope base of 1"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"beta_fast\":0",
     "'beta_fast' is 0, expected 0.001"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"beta_slow\":-1",
     "'beta_slow' is -1"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"beta_slow\":33",
     "beta_fast 32 and beta_slow 33"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"attention_factor\":0",
     "'attention_factor' is 0"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"attention_factor\":-1",
     "'attention_factor' is -1"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"mscale\":-1",
     "'mscale' is -1"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"mscale_all_dim\":\"1\"",
     "'mscale_all_dim' is not a number"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"truncate\":1",
     "'truncate' is neither true nor false"},
    {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,\"attn_factor\":1",
     "'attn_factor' of the type 'yarn' is not supported"},
    {"\"linear\"", "'factor' is missing"},
    {"\"linear\",\"factor\":0", "'factor' is 0"},
    {"\"linear\",\"factor\":0.5", "'factor' is 0.5"},
    {"\"linear\",\"factor\":2,\"beta_fast\":32",
     "'beta_fast' of the type 'linear' is not supported"},
    {"\"dynamic\"", "'factor' is missing"},
    {"\"dynamic\",\"factor\":-2", "'factor' is -2"},
    {"\"dynamic\",\"factor\":2,\"alpha\":1000", "'alpha' of the type 'dynamic' is not supported"},
    {"\"longrope\",\"factor\":2", "type 'longrope' is not supported"},
};

static void scalings_that_make_no_sense_are_refused_by_the_field(void **state)
{
    (void)state;
    char *folder = copy_folder("tiny-llama");

    for (size_t i = 0; i < sizeof bad_scalings / sizeof *bad_scalings; i++) {
        char *rope = xasprintf("{\"rope_type\":%s}", bad_scalings[i].rope);
        edit(folder, "config.json", "rope_parameters", rope);
        assert_refused(folder, rope, bad_scalings[i].message);
        assert_refused(folder, rope, "config.json: ");
        free(rope);
    }
    remove_folder(folder);
}

/* Fields that change nothing, and the context: what the config says, or what yarn reaches. */
static void how_far_a_scaled_model_reaches(void **state)
{
    (void)state;
    static const struct {
        const char *rope, *itself; /* original_max_position_embeddings of the config itself */
        enum rope_type type;
        int32_t context, original;
    } rows[] = {
        {"\"yarn\",\"factor\":3.5,\"original_max_position_embeddings\":1001", NULL, ROPE_YARN, 3503,
         1001},
        {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":100", NULL, ROPE_YARN, 512,
         100},
        {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":100", "200", ROPE_YARN, 800,
         200},
        {"\"yarn\",\"factor\":4,\"finetuned\":true,\"attention_factor\":null", "200", ROPE_YARN,
         800, 200},
        {"\"linear\",\"factor\":4,\"beta_fast\":null", NULL, ROPE_LINEAR, 512, 0},
        {"\"dynamic\",\"factor\":4", NULL, ROPE_PLAIN, 512, 0},
    };
    char *folder = copy_folder("tiny-llama");

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = {0};
        char *rope = xasprintf("{\"rope_type\":%s}", rows[i].rope);
        edit(folder, "config.json", "rope_parameters", rope);
        edit(folder, "config.json", "original_max_position_embeddings", rows[i].itself);
        struct model *m = model_open(folder, true, NULL, NULL, &err);
        if (!m)
            fail_msg("%s: %s", rope, err.msg);
        assert_int_equal(m->shape.scaling.type, rows[i].type);
        assert_int_equal(m->shape.max_context, rows[i].context);
        assert_int_equal(m->shape.scaling.original_context, rows[i].original);
        model_close(m);
        free(rope);
    }
    remove_folder(folder);
}

/* Kernels and evidence of one are not those of the other. */
static void a_scaling_is_part_of_the_hash(void **state)
{
    (void)state;
    static const char *const ropes[] = {
        "{\"rope_type\":\"default\"}",
        "{\"rope_type\":\"linear\",\"factor\":4}",
        "{\"rope_type\":\"linear\",\"factor\":2}",
        "{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128}",
        "{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,"
        "\"truncate\":false}",
        "{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":128,"
        "\"attention_factor\":1}",
    };
    enum { N = sizeof ropes / sizeof *ropes };
    struct model *m[N];
    char *folder = copy_folder("tiny-llama");

    for (int i = 0; i < N; i++) {
        edit(folder, "config.json", "rope_parameters", ropes[i]);
        m[i] = model_open(folder, false, NULL, NULL, NULL);
        assert_non_null(m[i]);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(m[k]->hash, m[i]->hash);
    }
    for (int i = 0; i < N; i++)
        model_close(m[i]);
    remove_folder(folder);
}

/* ---- GGUF ---------------------------------------------------------------------------------- */

#define YARN "qwen3.rope.scaling.type=yarn", "qwen3.rope.scaling.factor:4"
#define CONTEXT "qwen3.rope.scaling.original_context_length:128"

static void what_a_gguf_file_says_of_scaling_is_read_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key[5], *message; /* NULL: the model opens */
        enum rope_type type;
    } rows[] = {
        {{"qwen3.rope.scaling.factor:3"}, NULL, ROPE_LINEAR},
        {{"qwen3.rope.scale_linear:3"}, NULL, ROPE_LINEAR},
        {{"qwen3.rope.scaling.type=linear", "qwen3.rope.scaling.factor:3"}, NULL, ROPE_LINEAR},
        {{"qwen3.rope.scaling.factor:1"}, NULL, ROPE_PLAIN},
        {{"qwen3.rope.scaling.factor:0"}, NULL, ROPE_PLAIN},
        {{"qwen3.rope.scaling.factor:-2"}, "'qwen3.rope.scaling.factor' is -2", 0},
        {{"qwen3.rope.scaling.factor:nan"}, "qwen3.rope.scaling.factor", 0},
        {{"qwen3.rope.scale_linear:0.5"}, "'qwen3.rope.scale_linear' is 0.5", 0},
        {{YARN, CONTEXT}, NULL, ROPE_YARN},
        {{YARN, CONTEXT, "qwen3.rope.scaling.finetuned?1"}, NULL, ROPE_YARN},
        {{YARN, CONTEXT, "qwen3.rope.scaling.yarn_ext_factor:1"}, NULL, ROPE_YARN},
        {{YARN}, "'qwen3.rope.scaling.original_context_length' is missing", 0},
        {{YARN, "qwen3.rope.scaling.original_context_length:0"},
         "'qwen3.rope.scaling.original_context_length' is 0",
         0},
        {{"qwen3.rope.scaling.type=yarn", CONTEXT}, "'qwen3.rope.scaling.factor' is missing", 0},
        {{"qwen3.rope.scaling.type=yarn", CONTEXT, "qwen3.rope.scaling.factor:0"},
         "'qwen3.rope.scaling.factor' is 0",
         0},
        {{YARN, CONTEXT, "qwen3.rope.scaling.yarn_beta_slow:64"},
         "beta_fast 32 and beta_slow 64",
         0},
        {{YARN, CONTEXT, "qwen3.rope.scaling.yarn_beta_fast:0"},
         "'qwen3.rope.scaling.yarn_beta_fast' is 0",
         0},
        {{YARN, CONTEXT, "qwen3.rope.scaling.yarn_attn_factor:1"},
         "'qwen3.rope.scaling.yarn_attn_factor': 1: programs differ",
         0},
        {{YARN, CONTEXT, "qwen3.rope.scaling.attn_factor:2"},
         "'qwen3.rope.scaling.attn_factor': 2 is not supported",
         0},
        {{YARN, CONTEXT, "qwen3.rope.scaling.yarn_ext_factor:0.5"},
         "'qwen3.rope.scaling.yarn_ext_factor': 0.5 is not supported",
         0},
        {{YARN, CONTEXT, "qwen3.rope.scaling.yarn_log_multiplier:0.1"},
         "'qwen3.rope.scaling.yarn_log_multiplier': 0.1 is not supported",
         0},
        {{"qwen3.rope.scaling.type=longrope"}, "'qwen3.rope.scaling.type': 'longrope' is not", 0},
    };
    char path[] = "/tmp/whet-gguf-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = {0};
        write_gguf(fd, "tiny-qwen3.gguf", rows[i].key);
        struct model *m = model_open(path, true, NULL, NULL, &err);
        if (rows[i].message ? m || !strstr(err.msg, rows[i].message) : !m)
            fail_msg("row %zu: expected '%s', got '%s'", i,
                     rows[i].message ? rows[i].message : "a model", m ? "a model" : err.msg);
        if (m)
            assert_int_equal(m->shape.scaling.type, rows[i].type);
        if (m && m->shape.scaling.type != ROPE_PLAIN)
            assert_true(m->shape.scaling.factor == (rows[i].type == ROPE_YARN ? 4 : 3));
        model_close(m);
    }
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_and_attention_factors_are_those_of_transformers),
        cmocka_unit_test(tables_have_the_attention_factor_in_cosine_and_sine),
        cmocka_unit_test(scalings_that_make_no_sense_are_refused_by_the_field),
        cmocka_unit_test(how_far_a_scaled_model_reaches),
        cmocka_unit_test(a_scaling_is_part_of_the_hash),
        cmocka_unit_test(what_a_gguf_file_says_of_scaling_is_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
