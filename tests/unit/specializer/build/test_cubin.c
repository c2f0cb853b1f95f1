/* SPDX-License-Identifier: Apache-2.0 */
/* Cubins as damaged or hostile files: one is made here, byte by byte, and then every size, offset
 * and link in it is made to point elsewhere. No toolkit is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "specializer/agent/agent_cubin.h"
#include "specializer/build/cubin.h"

enum { NONE, SECTION_NAMES, NAMES, SYMBOLS, CODE, INFO, DATA, SECTIONS };

static const char section_names[] =
    "\0.shstrtab\0.strtab\0.symtab\0.text.whet_kernel\0.nv.info\0.nv.global.init";
static const char names[] = "\0whet_kernel\0whet_info";
enum { NAME_KERNEL = 1, NAME_INFO = 13 };

struct cubin {
    Elf64_Ehdr head;
    Elf64_Shdr section[SECTIONS];
    Elf64_Sym symbol[3];
    struct cuda_kernel_info info;
    unsigned char code[64], attributes[24];
    char section_names[80], names[24];
};

static void put(struct cubin *c, int at, const char *name, uint32_t type, const void *data,
                size_t n)
{
    const char *found = NULL;
    for (size_t i = 0; i + strlen(name) < sizeof section_names; i++)
        if (strcmp(section_names + i, name) == 0)
            found = section_names + i;
    assert_non_null(found);
    c->section[at] = (Elf64_Shdr){.sh_name = (uint32_t)(found - section_names),
                                  .sh_type = type,
                                  .sh_offset = (uint64_t)((const char *)data - (char *)c),
                                  .sh_size = n};
}

static struct cubin *make(void)
{
    static const unsigned char attributes[] = {4, 0x2f, 8, 0, 1, 0, 0, 0, 32, 0, 0, 0,
                                               4, 0x11, 8, 0, 1, 0, 0, 0, 0,  0, 0, 0};
    struct cubin *c = calloc(1, sizeof *c);
    memcpy(c->head.e_ident, ELFMAG, SELFMAG);
    c->head.e_ident[EI_CLASS] = ELFCLASS64;
    c->head.e_ident[EI_DATA] = ELFDATA2LSB;
    c->head.e_machine = EM_CUDA;
    c->head.e_shoff = offsetof(struct cubin, section);
    c->head.e_shentsize = sizeof(Elf64_Shdr);
    c->head.e_shnum = SECTIONS;
    c->head.e_shstrndx = SECTION_NAMES;
    memcpy(c->section_names, section_names, sizeof section_names);
    memcpy(c->names, names, sizeof names);
    memcpy(c->attributes, attributes, sizeof attributes);
    for (int i = 0; i < 64; i += 16)
        memcpy(c->code + i, (unsigned char[16]){0x4d, 0x79}, 16); /* EXIT */
    c->info =
        (struct cuda_kernel_info){.abi = WHET_CUDA_ABI, .region = 5, .m_max = 1, .launches = 1};
    c->info.launch[0] =
        (struct cuda_launch){.grid = {1, 1, 1}, .threads = 32, .pdl = 1, .cluster = 1};
    put(c, SECTION_NAMES, ".shstrtab", SHT_STRTAB, c->section_names, sizeof section_names);
    put(c, NAMES, ".strtab", SHT_STRTAB, c->names, sizeof names);
    put(c, SYMBOLS, ".symtab", SHT_SYMTAB, c->symbol, sizeof c->symbol);
    put(c, CODE, ".text.whet_kernel", SHT_PROGBITS, c->code, sizeof c->code);
    put(c, INFO, ".nv.info", 0x70000000, c->attributes, sizeof c->attributes);
    put(c, DATA, ".nv.global.init", SHT_PROGBITS, &c->info, sizeof c->info);
    c->section[SYMBOLS].sh_link = NAMES;
    c->section[SYMBOLS].sh_entsize = sizeof(Elf64_Sym);
    c->symbol[1] = (Elf64_Sym){.st_name = NAME_KERNEL,
                               .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                               .st_shndx = CODE,
                               .st_size = sizeof c->code};
    c->symbol[2] = (Elf64_Sym){.st_name = NAME_INFO,
                               .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
                               .st_shndx = DATA,
                               .st_size = sizeof c->info};
    return c;
}

/* Both readers: -1 if the one or the other refuses, with its words. */
static int read_both(const struct cubin *c, struct err *err)
{
    struct cubin_facts facts;
    err->msg[0] = 0;
    if (cubin_inspect_bytes(c, sizeof *c, &facts, err) != 0)
        return -1;
    return agent_cubin_inspect(c, sizeof *c, err);
}

static void expect(struct cubin *c, const char *word)
{
    struct err err;
    int rc = read_both(c, &err);
    if (word ? rc == 0 || !strstr(err.msg, word) : rc != 0)
        fail_msg("\"%s\" and not \"%s\"", rc == 0 ? "passed" : err.msg, word ? word : "passed");
    free(c);
}

static void a_whole_one_passes(void **unused)
{
    (void)unused;
    struct cubin_facts facts;
    struct err err = {""};
    struct cubin *c = make();
    assert_int_equal(cubin_inspect_bytes(c, sizeof *c, &facts, &err), 0);
    assert_int_equal(facts.registers, 32);
    assert_int_equal(facts.info.m_max, 1);
    expect(c, NULL);
}

/* CUDA 13.5 writes section headers wherever the sections end. */
static void section_headers_need_no_alignment(void **unused)
{
    (void)unused;
    struct cubin_facts facts;
    struct cubin *c = make();
    enum { TAIL = 4 };
    size_t n = sizeof *c + TAIL + sizeof c->section;
    char *moved = calloc(1, n);
    c->head.e_shoff = sizeof *c + TAIL;
    memcpy(moved, c, sizeof *c);
    memcpy(moved + sizeof *c + TAIL, c->section, sizeof c->section);
    memset(moved + offsetof(struct cubin, section), 0xff, sizeof c->section);
    struct err err = {""};
    if (cubin_inspect_bytes(moved, n, &facts, &err) != 0 ||
        agent_cubin_inspect(moved, n, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(facts.registers, 32);
    free(moved);
    free(c);
}

/* A section without bytes (NOBITS) may say any offset and size: nothing of it is in the file. */
static void sections_without_bytes_are_not_read(void **unused)
{
    (void)unused;
    static const int at[] = {SECTION_NAMES, NAMES, SYMBOLS, CODE, INFO, DATA};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct cubin *c = make();
        c->section[at[i]].sh_type = SHT_NOBITS;
        c->section[at[i]].sh_offset = UINT64_C(1) << 40;
        c->section[at[i]].sh_size = UINT64_C(1) << 40;
        expect(c, "");
        c = make();
        c->section[at[i]].sh_type = SHT_NOBITS;
        c->section[at[i]].sh_size = UINT64_MAX;
        expect(c, "");
    }
}

static void sizes_that_wrap_are_refused(void **unused)
{
    (void)unused;
    struct cubin *c = make();
    c->head.e_shoff = UINT64_MAX - 63; /* + 64 is the beginning of the file */
    expect(c, "is no cubin");
    c = make();
    c->head.e_shoff += 4; /* beside them */
    expect(c, "");
    c = make();
    c->head.e_shnum = 0xffff;
    expect(c, "is no cubin");
    c = make();
    c->head.e_shnum = 0; /* "more than fits: see section 0" */
    expect(c, "is no cubin");
    c = make();
    c->section[CODE].sh_offset = UINT64_MAX;
    c->section[CODE].sh_size = 2;
    expect(c, "ends outside");
    c = make();
    c->section[SYMBOLS].sh_link = 0xfffffff0;
    expect(c, "has no function");
    c = make();
    c->symbol[2].st_value = UINT64_MAX - 3;
    expect(c, "has no whet_info");
    c = make();
    c->symbol[2].st_shndx = 0xfff0;
    expect(c, "has no whet_info");
    c = make();
    c->info.launch[0].threads = INT32_MAX;
    expect(c, "blocks of 2147483647 threads");
    c = make();
    c->info.launch[0].threads = INT32_MIN;
    expect(c, "blocks of");
    c = make();
    c->attributes[2] = 0xff;
    c->attributes[3] = 0xff;
    expect(c, "registers");
}

/* Two descriptions, or two entries: the driver takes one of them, and the reader another. */
static void everything_is_there_once(void **unused)
{
    (void)unused;
    struct cubin *c = make();
    c->symbol[0] = c->symbol[2];
    c->symbol[0].st_value = 0;
    expect(c, "has no whet_info");
    c = make();
    c->symbol[0] = c->symbol[1];
    expect(c, "has no function");
    c = make();
    c->section[INFO] = c->section[CODE];
    expect(c, ""); /* no registers, or two texts */
}

static void code_and_data_beyond_the_frame_are_refused(void **unused)
{
    (void)unused;
    struct cubin *c = make();
    memcpy(c->code + 16, (unsigned char[16]){0x05, 0x78, 4, 0, 0, 0, 0, 0, 0, 0x50, 1}, 16);
    expect(c, "reads a clock");
    c = make();
    c->section[CODE].sh_size = 63;
    expect(c, "damaged: code of 63 bytes");
    c = make();
    c->section[CODE].sh_size = 0;
    expect(c, "damaged: code of 0 bytes");
    c = make();
    c->section[DATA].sh_size += 4;
    expect(c, "keeps state between launches");
}

/* Every byte, one at a time and turned over: an answer, never a crash. */
static void damage_anywhere_gets_an_answer(void **unused)
{
    (void)unused;
    struct err err;
    struct cubin *c = make();
    int refused = 0;
    for (size_t i = 0; i < sizeof *c; i++) {
        ((unsigned char *)c)[i] ^= 0xff;
        refused += read_both(c, &err) != 0;
        ((unsigned char *)c)[i] ^= 0xff;
    }
    assert_true(refused > 100);
    expect(c, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_one_passes),
        cmocka_unit_test(section_headers_need_no_alignment),
        cmocka_unit_test(sections_without_bytes_are_not_read),
        cmocka_unit_test(sizes_that_wrap_are_refused),
        cmocka_unit_test(everything_is_there_once),
        cmocka_unit_test(code_and_data_beyond_the_frame_are_refused),
        cmocka_unit_test(damage_anywhere_gets_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
