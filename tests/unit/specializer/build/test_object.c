/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects that the loader would do more with than map them, and descriptions of kernels that
 * are not the frame's: each is compiled here as an attack would have it, and refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/args.h"
#include "specializer/build/build.h"
#include "specializer/build/object.h"

static struct {
    char dir[40], source[60], object[60];
    struct config config;
    struct compiler compiler;
} shop;

static const struct object_frame frame = {
    .region = REGION_MLP_OUT, .m_max = 4, .layout = "agent/0123456789abcdef.c"};

/* A kernel as the frame describes it; `layout` is an initializer. */
#define KERNEL(m_max, layout)                                                      \
    "#include \"kernels/args.h\"\n"                                                \
    "static void run(const void *a, const struct team *t) { (void)a; (void)t; }\n" \
    "static int64_t bytes(int32_t m, int32_t n) { return m + n; }\n"               \
    "static int64_t packed(const struct weight *w) { return w->rows; }\n"          \
    "static void pack(const struct weight *w, void *p, int32_t a, int32_t b)\n"    \
    "{ (void)w; (void)p; (void)a; (void)b; }\n"                                    \
    "const struct cpu_kernel whet_kernel = {WHET_CPU_ABI, REGION_MLP_OUT, " m_max  \
    ", run, bytes, " layout ", packed, pack};\n"
#define OWN KERNEL("4", "\"agent/0123456789abcdef.c\"")

static bool compile(const char *text, const char *flags)
{
    char command[800];
    const char *root = getenv("WHET_SOURCE_ROOT");
    FILE *f = fopen(shop.source, "w");
    fputs(text, f);
    fclose(f);
    unlink(shop.object);
    int n = snprintf(command, sizeof command,
                     "%s -O2 -std=gnu11 -shared -fPIC -nostdlib -fno-asynchronous-unwind-tables "
                     "-w -I%s -o %s %s %s 2>/dev/null",
                     shop.compiler.path, root ? root : ".", shop.object, shop.source, flags);
    return n < (int)sizeof command && system(command) == 0;
}

static void expect(const char *text, const char *flags, bool is_text, const char *word)
{
    struct err err = {""};
    if (!compile(text, flags)) { /* this compiler or linker has no such thing */
        print_message("not here: %s %s\n", word ? word : "", flags);
        return;
    }
    int rc = is_text ? object_inspect_text(shop.object, &frame, &err)
                     : object_inspect(shop.object, &err);
    if (word ? rc == 0 || !strstr(err.msg, word) : rc != 0)
        fail_msg("\"%s\" and not \"%s\": %s\n%s", rc == 0 ? "passed" : err.msg, word, flags, text);
}

static void a_kernel_as_the_frame_describes_it_passes(void **unused)
{
    (void)unused;
    assert_true(compile(OWN, ""));
    expect(OWN, "", false, NULL);
    expect(OWN, "", true, NULL);
    expect(OWN, "-Wl,-z,now", true, NULL);
    expect(KERNEL("4", "0"), "", true, NULL);
    /* Calls of what may be called, by the compiler's own choice too. */
    expect(OWN "void *memcpy(void *, const void *, unsigned long);\n"
               "__attribute__((visibility(\"hidden\"))) void f(char *a, char *b, int n)\n"
               "{ for (int i = 0; i < n; i++) a[i] = b[i]; memcpy(a + n, b, n); }\n",
           "", true, NULL);
}

static void what_the_loader_would_do_more_is_refused(void **unused)
{
    (void)unused;
    static const struct {
        const char *text, *flags, *word;
    } bad[] = {
        {"", "-Wl,-z,execstack", "wants an executable stack"},
        {"int outer(int x) { int inner(int y) { return x + y; }\n"
         "  int (*volatile p)(int) = inner; return p(1); }\n",
         "-ftrampolines", "wants an executable stack"},
        {"int outer(int x) { int inner(int y) { return x + y; }\n"
         "  int (*volatile p)(int) = inner; return p(1); }\n",
         "", "wants an executable stack"},
        {"", "-Wl,-N", "writable and executable"},
        {"", "-Wl,-rpath,/tmp", "asks the loader for tag"},
        {"", "-Wl,--audit,/tmp/a.so", "asks the loader for tag"},
        {"", "-Wl,-F,/tmp/a.so", "asks the loader for tag"},
        {"", "-Wl,-f,/tmp/a.so", "asks the loader for tag"},
        {"", "-Wl,-soname,libm.so.6", "asks the loader for tag"},
        {"", "-Wl,-z,initfirst", "asks the loader for flags"},
        {"", "-Wl,-z,nodelete", "asks the loader for flags"},
        {"", "-Wl,--no-as-needed -lc", "needs another library"},
        {"void hello(void) {}\n", "-Wl,-init,hello", "has a constructor"},
        {"void bye(void) {}\n", "-Wl,-fini,bye", "has a destructor"},
        {"int x; __attribute__((constructor)) void hello(void) { x = 1; }\n", "",
         "has a constructor"},
        {"int x; __attribute__((destructor)) void bye(void) { x = 1; }\n", "", "has a destructor"},
        {"static int a(void) { return 1; } static void *resolve(void) { return a; }\n"
         "int f(void) __attribute__((ifunc(\"resolve\")));\n",
         "", "has the IFUNC f"},
        {"static int a(void) { return 1; } static void *resolve(void) { return a; }\n"
         "static int f(void) __attribute__((ifunc(\"resolve\")));\n"
         "int g(void) { return f(); }\n",
         "", "has relocations of type"},
        {"__thread int counter; int next(void) { return ++counter; }\n", "", "thread-local"},
        {"int system(const char *); int f(void) { return system(0); }\n", "", "refers to system"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = xasprintf("%s%s", OWN, bad[i].text);
        expect(text, bad[i].flags, false, bad[i].word);
        free(text);
    }
}

static void a_text_takes_no_address_from_the_loader(void **unused)
{
    (void)unused;
    static const char in_code[] =
        OWN "void *memcpy(void *, const void *, unsigned long);\n"
            "__attribute__((visibility(\"hidden\"))) void *g(void) { return (void *)memcpy; }\n";
    static const char in_data[] =
        OWN "void *memcpy(void *, const void *, unsigned long);\n"
            "static void *(*const kept)(void *, const void *, unsigned long) "
            "__attribute__((used)) = memcpy;\n";
    expect(in_code, "", false, NULL);
    expect(in_code, "", true, "takes the address of memcpy");
    expect(in_data, "", true, "takes the address of memcpy");
}

static void a_text_describes_itself_as_the_frame_would(void **unused)
{
    (void)unused;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {KERNEL("64", "0"), "says it computes region 5 for 64 tokens"},
        {KERNEL("4", "\"panel16\""), "calls its packed weights panel16"},
        {KERNEL("4", "\"agent/0123456789abcde0.c\""), "calls its packed weights agent/"},
        {KERNEL("4", "\"\""), "calls its packed weights"},
        {KERNEL("4", "(const char *)run"), "packed weights"},
        {"#include \"kernels/args.h\"\n#define REGION_MLP_OUT REGION_HEAD\n" OWN,
         "says it computes region 6"},
        {"#include \"kernels/args.h\"\n#define WHET_CPU_ABI 7\n" KERNEL("4", "0"),
         "says it computes"},
        {"const int whet_kernel = 1;\n", "no description"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(bad[i].text, "", true, bad[i].word);
}

/* The loader goes by addresses, and tools by section headers: who changes one of them only shows
 * one thing and loads another. */
static void two_views_of_one_object_are_refused(void **unused)
{
    (void)unused;
    static union {
        Elf64_Ehdr head;
        unsigned char byte[1 << 18]; /* on ARM segments lie 64 KiB apart */
    } file;
    struct err err = {""};
    assert_true(compile(OWN, ""));
    FILE *f = fopen(shop.object, "rb");
    size_t n = fread(&file, 1, sizeof file, f);
    fclose(f);
    assert_int_equal(object_inspect_bytes(&file, n, &frame, &err), 0);
    Elf64_Shdr *section = (Elf64_Shdr *)(void *)(file.byte + file.head.e_shoff);
    Elf64_Phdr *segment = (Elf64_Phdr *)(void *)(file.byte + file.head.e_phoff);
    int seen = 0;
    for (int i = 0; i < file.head.e_shnum; i++)
        if (section[i].sh_type == SHT_DYNSYM) {
            section[i].sh_offset += sizeof(Elf64_Sym);
            assert_int_equal(object_inspect_bytes(&file, n, &frame, &err), -1);
            section[i].sh_offset -= sizeof(Elf64_Sym);
            seen++;
        }
    for (int i = 0; i < file.head.e_phnum; i++)
        if (segment[i].p_type == PT_DYNAMIC) {
            segment[i].p_vaddr += sizeof(Elf64_Dyn);
            assert_int_equal(object_inspect_bytes(&file, n, &frame, &err), -1);
            segment[i].p_vaddr -= sizeof(Elf64_Dyn);
            Elf64_Dyn *d = (Elf64_Dyn *)(void *)(file.byte + segment[i].p_offset);
            for (; d->d_tag != DT_NULL; d++)
                if (d->d_tag == DT_STRTAB || d->d_tag == DT_SYMTAB) {
                    d->d_un.d_ptr += 8;
                    assert_int_equal(object_inspect_bytes(&file, n, &frame, &err), -1);
                    d->d_un.d_ptr -= 8;
                    seen++;
                }
        }
    assert_int_equal(seen, 3);
    assert_int_equal(object_inspect_bytes(&file, n, &frame, &err), 0);
}

static int open_shop(void **unused)
{
    (void)unused;
    char *argv[] = {"test"};
    struct err err = {""};
    strcpy(shop.dir, "/tmp/whet-object-XXXXXX");
    if (!mkdtemp(shop.dir) || config_parse(&shop.config, 1, argv, &err) != 0)
        return -1;
    sprintf(shop.source, "%s/k.c", shop.dir);
    sprintf(shop.object, "%s/k.so", shop.dir);
    return compiler_find(&shop.config, &shop.compiler, &err);
}

static int close_shop(void **unused)
{
    (void)unused;
    config_free(&shop.config);
    unlink(shop.source);
    unlink(shop.object);
    return rmdir(shop.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_as_the_frame_describes_it_passes),
        cmocka_unit_test(what_the_loader_would_do_more_is_refused),
        cmocka_unit_test(a_text_takes_no_address_from_the_loader),
        cmocka_unit_test(a_text_describes_itself_as_the_frame_would),
        cmocka_unit_test(two_views_of_one_object_are_refused),
    };
    return cmocka_run_group_tests(tests, open_shop, close_shop);
}
