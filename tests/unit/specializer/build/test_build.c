/* SPDX-License-Identifier: Apache-2.0 */
/* test_build.c - finding compilers, building objects, and objects that must not be loaded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "engine/backend.h"
#include "specializer/build/build.h"
#include "specializer/build/build_private.h"
#include "specializer/build/object.h"
#include "specializer/build/sources.h"
#include "specializer/search/space.h"

struct shop {
    char dir[40];
    struct config config;
    struct compiler compiler;
    struct stage_env env;
    struct candidate c;
};

static int shop_open(void **state)
{
    struct shop *s = calloc(1, sizeof *s);
    char *argv[] = {"test"};
    struct err err = {""};
    strcpy(s->dir, "/tmp/whet-build-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    assert_int_equal(config_parse(&s->config, 1, argv, &err), 0);
    assert_int_equal(compiler_find(&s->config, &s->compiler, &err), 0);
    s->env = (struct stage_env){
        .config = &s->config, .compiler = &s->compiler, .kernel_dir = s->dir, .alone = true};
    static struct slot slot = {.region = REGION_MLP_OUT, .m = 1};
    s->c.slot = &slot;
    s->c.source = malloc(80);
    s->c.object = malloc(80);
    sprintf(s->c.source, "%s/k.c", s->dir);
    sprintf(s->c.object, "%s/k.so", s->dir);
    *state = s;
    return 0;
}

static int shop_close(void **state)
{
    struct shop *s = *state;
    unlink(s->c.source);
    unlink(s->c.object);
    int rc = rmdir(s->dir); /* fails if a temporary file was left behind */
    config_free(&s->config);
    free(s->c.source);
    free(s->c.object);
    free(s->c.log);
    free(s);
    return rc;
}

static struct build *begin(struct shop *s, const char *text)
{
    struct err err = {""};
    FILE *f = fopen(s->c.source, "w");
    fputs(text, f);
    fclose(f);
    struct build *b = build_start(&s->env, &s->c, &err);
    assert_non_null(b);
    return b;
}

static enum stage_result build(struct shop *s, const char *text)
{
    struct build *b = begin(s, text);
    enum stage_result r;
    while ((r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    return r;
}

#define EXPORTED "const int whet_kernel = KNOB;\n"

static void build_puts_an_object_with_its_checksum_in_place(void **state)
{
    struct shop *s = *state;
    char *define[] = {"-DKNOB=7", NULL}, sum[17];
    s->c.define = define;
    assert_int_equal(build(s, EXPORTED), STAGE_PASS);
    assert_int_equal(object_checksum(s->c.object, sum), 0);
    assert_string_equal(sum, s->c.object_sum);
    struct stat st;
    assert_int_equal(stat(s->c.object, &st), 0);
    assert_int_equal(s->c.evidence.object_bytes, st.st_size);
    assert_true(s->c.evidence.build_s > 0);
    /* The log is the command that makes this object again; the compiler had nothing to add. */
    assert_memory_equal(s->c.log, s->compiler.path, strlen(s->compiler.path));
    assert_non_null(strstr(s->c.log, " -DKNOB=7 "));
    assert_non_null(strstr(s->c.log, s->c.source));
    assert_null(candidate_words(&s->c));
}

/* A library's kernel needs no compiler: the backend writes its object out of the -D list. */
static int choose_seven(struct backend *b, char *const *define, const char *path, char **log,
                        struct err *e)
{
    (void)b;
    if (strcmp(define[0], "-DRANK=7") != 0)
        return err_set(e, "the library lists 7 algorithms");
    FILE *f = fopen(path, "w");
    fputs("the seventh", f);
    fclose(f);
    *log = strdup("algorithm 66");
    return 0;
}

static void a_librarys_kernel_is_built_by_the_backend(void **state)
{
    struct shop *s = *state;
    const struct template library = {.library = true};
    struct backend_ops ops = {.choose = choose_seven}, none = {.choose = NULL};
    char *define[] = {"-DRANK=7", NULL}, *beyond[] = {"-DRANK=8", NULL}, sum[17];
    s->compiler.path[0] = 0;
    s->c.template = &library;
    s->c.define = define;
    s->env.ops = &none;
    assert_int_equal(build(s, ""), STAGE_REFUSE);
    assert_non_null(strstr(s->c.reason, "no library"));
    s->env.ops = &ops;
    assert_int_equal(build(s, ""), STAGE_PASS);
    assert_int_equal(object_checksum(s->c.object, sum), 0);
    assert_string_equal(sum, s->c.object_sum);
    assert_string_equal(s->c.log, "algorithm 66");
    s->c.define = beyond;
    assert_int_equal(build(s, ""), STAGE_REFUSE);
    assert_string_equal(s->c.reason, "build: the library lists 7 algorithms");
    assert_null(s->c.log);
}

static void build_keeps_the_compilers_words(void **state)
{
    struct shop *s = *state;
    assert_int_equal(build(s, EXPORTED), STAGE_REFUSE); /* KNOB is not defined */
    assert_non_null(strstr(s->c.reason, "KNOB"));
    assert_non_null(strstr(candidate_words(&s->c), "error"));
    /* Not the command; "cc" may be in the folder's name by chance. */
    assert_non_null(strstr(s->c.log, "--build-id=none"));
    assert_null(strstr(candidate_words(&s->c), "--build-id=none"));
    candidate_log_add(&s->c, "and the probe's");
    assert_non_null(strstr(s->c.log, "and the probe's"));
    assert_non_null(strstr(s->c.log, "error"));
    assert_int_equal(access(s->c.object, F_OK), -1);
}

/* What the compiler says of a text has the text's own words in it: they must not pass for a full
 * disk or a compiler that was killed, which are tried again. */
static void build_does_not_take_the_kernels_words_for_the_compilers(void **state)
{
    struct shop *s = *state;
    static const char *const text[] = {
        "_Static_assert(1 == 2, \"No space left on device\");\n",
        "int whet_kernel = nothing; /* cc: fatal error: Killed signal terminated program cc1 */\n",
        "int f(void) { return nothing; } /* /usr/bin/ld: No space left on device */\n",
        "int f(void) {\n  cc: error: x; /* terminated with signal 9 */ return 1; }\n",
    };
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        if (build(s, text[i]) != STAGE_REFUSE)
            fail_msg("%s: %s", text[i], s->c.log);
        assert_int_equal(access(s->c.object, F_OK), -1);
    }
}

static void build_knows_what_hinders_a_compiler(void **state)
{
    struct shop *s = *state;
    static const char *const hindered[] = {
        "cc: fatal error: Killed signal terminated program cc1\ncompilation terminated.\n",
        "k.c:3:1: warning: unused\n/usr/bin/ld: final link failed: No space left on device\n"
        "collect2: error: ld returned 1 exit status\n",
        "collect2: fatal error: ld terminated with signal 9 [Killed]\n",
        "/usr/bin/x86_64-linux-gnu-gcc-12: fatal error: Killed signal terminated program as\n",
        "clang-14: error: unable to execute command: Killed\n",
        "gcc: fatal error: cannot execute '/usr/lib/cc1': vfork: Resource temporarily "
        "unavailable\ncompilation terminated.\n",
        "clang: error: unable to execute command: posix_spawn failed: Resource temporarily "
        "unavailable\n",
        "LLVM ERROR: IO failure on output stream: No space left on device\n",
        "error: unable to open output file 'k.so': 'No space left on device'\n",
        "/x/k.so.1-0.tmp.d/ccA.s: Assembler messages:\n/x/k.so.1-0.tmp.d/ccA.s: Fatal error: can't "
        "write 12 bytes to section .text of k.o: 'No space left on device'\n"};
    static const char *const own[] = {
        "/x/k.c:1:1: error: static assertion failed: \"No space left on device\"\n",
        "k.c(1): error: static assertion failed with \"terminated with signal 9\"\n",
        "    1 | int a = b; /* cc: fatal error: Killed signal terminated program cc1 */\n", ""};
    for (size_t i = 0; i < sizeof hindered / sizeof *hindered; i++)
        if (!compiler_was_hindered(hindered[i], s->c.object))
            fail_msg("blamed on the kernel: %s", hindered[i]);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (compiler_was_hindered(own[i], s->c.object))
            fail_msg("blamed on the machine: %s", own[i]);
    assert_int_equal(build(s, "int whet_kernel = 1;"), STAGE_PASS); /* there is an object */
}

/* Somebody clears our folders away while we run: that says nothing of a kernel, and what comes next
 * finds them again. */
static void build_goes_on_where_folders_are_cleared_away(void **state)
{
    struct shop *s = *state;
    struct err err = {""};
    char *kernels = xasprintf("%s/kernels", s->dir), *folder = xasprintf("%s/objects", s->dir),
         *header = xasprintf("%s/args.h", kernels);
    sprintf(s->c.object, "%s/k.so", folder);
    assert_int_equal(build(s, "int whet_kernel = 1;"), STAGE_PASS); /* there was none at all */
    struct build *b = begin(s, "int whet_kernel = 1;");
    safe_folder_remove(folder);
    enum stage_result r;
    while ((r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    assert_int_equal(r, STAGE_RETRY);
    s->env.kernel_dir = kernels;
    assert_int_equal(kernel_sources_write(kernels, &err), 0);
    assert_int_equal(unlink(header), 0);
    assert_int_equal(build(s, "#include \"args.h\"\nint whet_kernel = 1;"), STAGE_RETRY);
    assert_int_equal(build(s, "#include \"args.h\"\nint whet_kernel = 1;"), STAGE_PASS);
    assert_int_equal(build(s, "#include \"nothing.h\"\n"), STAGE_REFUSE); /* its own doing */
    safe_folder_remove(kernels);
    unlink(s->c.source);
    build_end(build_start(&s->env, &s->c, &err)); /* what it compiles is not there */
    assert_true(kernel_sources_there(kernels));
    safe_folder_remove(kernels);
    safe_folder_remove(folder);
    free(kernels);
    free(folder);
    free(header);
}

/* 2^40 nested expansions. */
static void endless(char text[4000])
{
    strcpy(text, "#define A0 1+1\n");
    for (int i = 1; i <= 40; i++)
        sprintf(text + strlen(text), "#define A%d A%d+A%d\n", i, i - 1, i - 1);
    strcat(text, "const int whet_kernel = A40;\n");
}

static void build_stops_a_compiler_that_does_not_end(void **state)
{
    struct shop *s = *state;
    char text[4000];
    s->config.specializer_build_timeout = 1;
    endless(text);
    enum stage_result r;
    do
        r = build(s, text);
    while (r == STAGE_RETRY); /* the machine had no second of CPU time for it in ten */
    assert_int_equal(r, STAGE_REFUSE);
    assert_non_null(strstr(s->c.reason, "compiler"));
}

/* Entries of a folder, but "." and ".."; -1: there is none. */
static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = -2;
    if (!d)
        return -1;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* The folder in which a running compiler keeps what its parts hand each other; `out` stays as it is
 * while there is none. */
static void find_compilers_folder(const struct shop *s, char *out, size_t size)
{
    DIR *d = opendir(s->dir);
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".tmp.d"))
            snprintf(out, size, "%s/%s", s->dir, e->d_name);
    closedir(d);
}

static void a_build_that_is_given_up_leaves_nothing_of_the_compilers(void **state)
{
    struct shop *s = *state;
    char text[4000], folder[400] = "";
    endless(text);
    struct build *b = begin(s, text);
    for (int i = 0; i < 300000 && entries(folder) < 1; i++) { /* until it has begun a file there */
        assert_int_equal(build_poll(b), STAGE_RUNNING);
        find_compilers_folder(s, folder, sizeof folder);
        usleep(1000);
    }
    assert_true(entries(folder) > 0);
    build_end(b);
    assert_int_equal(entries(folder), -1);
    assert_int_equal(entries(s->dir), 1); /* the source */
}

static void build_refuses_objects_that_reach_outside(void **state)
{
    struct shop *s = *state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"int open(const char *, int); int whet_kernel(void) { return open(\"/\", 0); }",
         "refers to open"},
        {"volatile int whet_kernel; __attribute__((constructor)) static void f(void)"
         "{ whet_kernel = 1; }",
         "constructor"},
        {"volatile int whet_kernel; __attribute__((destructor)) static void f(void)"
         "{ whet_kernel = 1; }",
         "destructor"},
        {"__thread int t; int whet_kernel(void) { return t++; }", "thread-local"},
        {"static void r(void) {} static void *f(void) { return r; }"
         "void i(void) __attribute__((ifunc(\"f\"))); int whet_kernel;",
         "IFUNC"},
        {"int whet_kernels;", "whet_kernel"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(build(s, bad[i].text), STAGE_REFUSE);
        if (!strstr(s->c.reason, bad[i].word))
            fail_msg("%s, expected: %s", s->c.reason, bad[i].word);
    }
    assert_int_equal(build(s,
                           "void *memcpy(void *, const void *, unsigned long); float expf(float);"
                           "float whet_kernel(float *a, float *b, long n)"
                           "{ memcpy(a, b, n); return expf(a[0]); }"),
                     STAGE_PASS);
}

static void build_refuses_system_calls_in_text_written_by_an_agent(void **state)
{
#if defined(__x86_64__) || defined(__aarch64__)
    struct shop *s = *state;
#if defined(__x86_64__)
    const char *text = "int whet_kernel(void) { long r; __asm__ volatile(\"syscall\" : \"=a\"(r) :"
                       " \"a\"(39) : \"rcx\", \"r11\"); return (int)r; }";
#else
    const char *text =
        "int whet_kernel(void) { register long n __asm__(\"x8\") = 172, r __asm__(\"x0\");"
        " __asm__ volatile(\"svc #0\" : \"=r\"(r) : \"r\"(n)); return (int)r; }";
#endif
    assert_int_equal(build(s, text), STAGE_PASS); /* our own templates are trusted that far */
    s->c.origin = ORIGIN_AGENT;
    assert_int_equal(build(s, text), STAGE_REFUSE);
    assert_non_null(strstr(s->c.reason, "system-call"));
#else
    (void)state;
    skip();
#endif
}

/* With the bytes of a system call. */
#if defined(__x86_64__)
#define CONSTANT "short n = 0x050f"
#elif defined(__aarch64__)
#define CONSTANT "unsigned n = 0xd4000001"
#endif

/* A compiler whose code has bytes of a system call until it is called with `way`. */
static __attribute__((unused)) void write_wrapper(const char *path, const char *compiler,
                                                  const char *way)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "#!/bin/sh\ncase \"$*\" in *%s) ;; *) set -- -DFIRST \"$@\" ;; esac\n"
            "exec '%s' \"$@\"\n",
            way, compiler);
    fclose(f);
    assert_int_equal(chmod(path, 0700), 0);
}

/* Bytes of a system call that are there as one compiles and not as one does in another way are no
 * system call. What some of these ways leave may need another one. */
static void build_looks_again_at_what_may_be_a_constant(void **state)
{
#if defined(CONSTANT)
    static const char *const ways[] = {"-frename-registers", "-fno-gcse", "-fno-ivopts"};
    struct shop *s = *state;
    char wrapper[120], compiler[sizeof s->compiler.path];
    snprintf(wrapper, sizeof wrapper, "%s/cc", s->dir);
    snprintf(compiler, sizeof compiler, "%s", s->compiler.path);
    snprintf(s->compiler.path, sizeof s->compiler.path, "%s", wrapper);
    s->c.origin = ORIGIN_AGENT;
    for (int i = 0; i < 3; i++) {
        write_wrapper(wrapper, compiler, ways[i]);
        assert_int_equal(
            build(s, "#ifdef FIRST\nconst __attribute__((section(\".text\"))) " CONSTANT ";\n"
                     "#endif\nint whet_kernel(int a) { return a; }"),
            STAGE_REFUSE);
        unlink(wrapper);
        assert_null(strstr(s->c.reason, "system-call")); /* but what comes next */
        assert_non_null(strstr(s->c.log, ways[i]));
    }
#else
    (void)state;
    skip();
#endif
}

/* Every byte of a small object changed, one at a time: an answer, never a crash. */
static void object_inspect_survives_damage_anywhere(void **state)
{
    struct shop *s = *state;
    assert_int_equal(build(s, "int whet_kernel = 1;"), STAGE_PASS);
    FILE *f = fopen(s->c.object, "rb");
    static unsigned char data[1 << 18]; /* on ARM segments lie 64 KiB apart */
    size_t n = fread(data, 1, sizeof data, f);
    assert_true(n > 1024 && n < sizeof data);
    fclose(f);
    struct err err;
    const struct object_frame frame = {.region = REGION_MLP_OUT, .m_max = 1};
    int refused = 0;
    for (size_t i = 0; i < n; i += i < 1024 ? 1 : 1 + n / 500) {
        unsigned char was = data[i];
        data[i] ^= 0xff;
        f = fopen(s->c.object, "wb");
        assert_int_equal(fwrite(data, 1, n, f), n);
        fclose(f);
        refused += object_inspect(s->c.object, &err) != 0;
        object_inspect_text(s->c.object, &frame, &err);
        data[i] = was;
    }
    assert_true(refused > 10);
    for (size_t cut = 0; cut < n; cut += 1 + n / 200) {
        assert_int_equal(truncate(s->c.object, (off_t)(n - 1 - cut)), 0);
        object_inspect_text(s->c.object, &frame, &err);
    }
    assert_int_equal(truncate(s->c.object, 0), 0);
    assert_int_equal(object_inspect(s->c.object, &err), -1);
}

/* What is configured runs as our user: nobody else may be able to exchange it. */
static void compiler_that_anybody_may_exchange_is_refused_with_the_reason(void **state)
{
    struct shop *s = *state;
    struct compiler found = {0};
    struct err err = {""};
    char path[200], link[400];
    char *mine = s->config.specializer_compiler;
    snprintf(path, sizeof path, "%s/cc", s->dir);
    snprintf(link, sizeof link, "ln -s $(command -v %.100s) %s", s->compiler.path, path);
    assert_int_equal(system(link), 0);
    s->config.specializer_compiler = path;
    assert_int_equal(compiler_find(&s->config, &found, &err), 0);
    assert_int_equal(chmod(s->dir, 0777), 0);
    assert_int_equal(compiler_find(&s->config, &found, &err), -1);
    assert_non_null(strstr(err.msg, s->dir));
    assert_non_null(strstr(err.msg, "other users"));
    assert_int_equal(chmod(s->dir, 0700), 0);
    char here[400], relative[200];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(s->dir), 0);
    snprintf(relative, sizeof relative, "./cc");
    s->config.specializer_compiler = relative;
    assert_int_equal(compiler_find(&s->config, &found, &err), -1);
    assert_non_null(strstr(err.msg, "./cc is a relative path"));
    assert_int_equal(chdir(here), 0);
    s->config.specializer_compiler = mine;
    unlink(path);
}

/* Whatever umask the server was started with, an object is for us alone, or it is not loaded. */
static void build_makes_objects_that_only_we_can_write(void **state)
{
    struct shop *s = *state;
    struct stat st;
    mode_t before = umask(0);
    assert_int_equal(build(s, "int whet_kernel(void) { return 1; }"), STAGE_PASS);
    umask(before);
    assert_int_equal(stat(s->c.object, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
}

static void compiler_find_says_what_is_wrong_with_the_one_configured(void **state)
{
    struct shop *s = *state;
    struct compiler found = {0};
    struct err err = {""};
    char *mine = s->config.specializer_compiler;
    s->config.specializer_compiler = "/no/such/cc";
    assert_int_equal(compiler_find(&s->config, &found, &err), -1);
    assert_non_null(strstr(err.msg, "/no/such/cc"));
    s->config.specializer_compiler = "true"; /* runs, says nothing, builds nothing */
    assert_int_equal(compiler_find(&s->config, &found, &err), -1);
    char *before = strdup(getenv("PATH"));
    s->config.specializer_compiler = "";
    setenv("PATH", "/nowhere", 1);
    assert_int_equal(compiler_find(&s->config, &found, &err), -1);
    assert_non_null(strstr(err.msg, "no C compiler"));
    assert_non_null(strstr(err.msg, "cc: not found"));
    char broken[200];
    snprintf(broken, sizeof broken, "%s/gcc", s->dir);
    FILE *f = fopen(broken, "w");
    assert_true(f && fputs("#!/bin/sh\nexit 1\n", f) > 0 && fclose(f) == 0);
    assert_int_equal(chmod(broken, 0700), 0);
    setenv("PATH", s->dir, 1); /* neither cc nor clang: what is said is of the one that is there */
    assert_int_equal(compiler_find(&s->config, &found, &err), -1);
    assert_non_null(strstr(err.msg, "gcc --version: no answer"));
    unlink(broken);
    setenv("PATH", before, 1);
    s->config.specializer_compiler = mine;
    assert_int_equal(compiler_find(&s->config, &found, &err), 0);
    assert_true(strlen(found.version) > 3);
    free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(build_puts_an_object_with_its_checksum_in_place, shop_open,
                                        shop_close),
        cmocka_unit_test_setup_teardown(a_librarys_kernel_is_built_by_the_backend, shop_open,
                                        shop_close),
        cmocka_unit_test_setup_teardown(build_keeps_the_compilers_words, shop_open, shop_close),
        cmocka_unit_test_setup_teardown(build_does_not_take_the_kernels_words_for_the_compilers,
                                        shop_open, shop_close),
        cmocka_unit_test_setup_teardown(build_knows_what_hinders_a_compiler, shop_open, shop_close),
        cmocka_unit_test_setup_teardown(build_goes_on_where_folders_are_cleared_away, shop_open,
                                        shop_close),
        cmocka_unit_test_setup_teardown(build_stops_a_compiler_that_does_not_end, shop_open,
                                        shop_close),
        cmocka_unit_test_setup_teardown(a_build_that_is_given_up_leaves_nothing_of_the_compilers,
                                        shop_open, shop_close),
        cmocka_unit_test_setup_teardown(build_refuses_objects_that_reach_outside, shop_open,
                                        shop_close),
        cmocka_unit_test_setup_teardown(build_refuses_system_calls_in_text_written_by_an_agent,
                                        shop_open, shop_close),
        cmocka_unit_test_setup_teardown(build_looks_again_at_what_may_be_a_constant, shop_open,
                                        shop_close),
        cmocka_unit_test_setup_teardown(object_inspect_survives_damage_anywhere, shop_open,
                                        shop_close),
        cmocka_unit_test_setup_teardown(
            compiler_that_anybody_may_exchange_is_refused_with_the_reason, shop_open, shop_close),
        cmocka_unit_test_setup_teardown(build_makes_objects_that_only_we_can_write, shop_open,
                                        shop_close),
        cmocka_unit_test_setup_teardown(compiler_find_says_what_is_wrong_with_the_one_configured,
                                        shop_open, shop_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
