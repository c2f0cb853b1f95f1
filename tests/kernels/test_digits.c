/* SPDX-License-Identifier: Apache-2.0 */
/* test_digits.c - activations as digits, for every instruction set that this processor has.
 *
 * What kernels do with digits is compared with eager in test_templates.c, within a limit; that
 * hides a digit that is seldom there. digits_check.c looks at the digits themselves, and is
 * compiled here as kernels are: for each instruction set, number of digits, and format of weights
 * that keeps other sums. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "config/err.h"
#include "kernels/args.h"
#include "kernels/isa.h"

static int failed, passed;

static void check(const char *root, const char *dir, int isa, const char *flags)
{
    static const int formats[] = {DTYPE_Q4_1, DTYPE_Q6_K, DTYPE_Q4_K};
    const char *compiler = getenv("CC") ? getenv("CC") : "cc";
    for (int digits = 1; digits <= 4; digits++)
        for (size_t i = 0; i < (digits < 3 ? 1 : sizeof formats / sizeof *formats); i++) {
            char *command =
                xasprintf("%s -O1 -std=gnu11 -ffp-contract=off -Wall -Wextra -Werror -I%s/kernels "
                          "%s -DISA=%d "
                          "-DDIGITS=%d -DWTYPE=%d %s/tests/kernels/digits_check.c -o %s/check -lm "
                          "&& %s/check",
                          compiler, root, flags, isa, digits, formats[i], root, dir, dir);
            fflush(stdout);
            const bool right = system(command) == 0;
            printf("%s ISA=%d DIGITS=%d WTYPE=%d\n", right ? "ok" : "not ok", isa, digits,
                   formats[i]);
            passed += right;
            failed += !right;
            free(command);
        }
}

int main(void)
{
    enum { PORTABLE, AVX2, AVX512, VNNI, NEON = 5 }; /* kernels/cpu/lib/isa.h */
    const struct isa_facts *has = isa_facts();
    const char *root = getenv("WHET_SOURCE_ROOT");
    char dir[] = "/tmp/whet-digits-XXXXXX";
    if (!root || !mkdtemp(dir)) {
        printf("not ok: WHET_SOURCE_ROOT says where the sources are\n");
        return 1;
    }
    check(root, dir, PORTABLE, "");
    if (has->HAS_AVX2)
        check(root, dir, AVX2, "-mavx2 -mfma -mf16c");
    if (has->HAS_AVX512)
        check(root, dir, AVX512, "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c");
    if (has->HAS_VNNI)
        check(root, dir, VNNI,
              "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c");
    if (has->HAS_NEON)
        check(root, dir, NEON, "");
    char *clean = xasprintf("rm -r %s", dir);
    const bool left = system(clean) != 0;
    free(clean);
    printf("%d passed, %d failed\n", passed, failed);
    return left || failed > 0;
}
