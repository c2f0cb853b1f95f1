/* SPDX-License-Identifier: Apache-2.0 */
/* test_hash.c - SHA-256 and SipHash-2-4 on the test vectors of their authors. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <string.h>

#include "config/sha256.h"
#include "config/siphash.h"

static void check_sha(const char *text, size_t n, const char *want)
{
    unsigned char out[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1];
    sha256(text, n, out);
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", out[i]);
    assert_string_equal(hex, want);
}

static void sha256_gives_the_digests_of_the_standard(void **state)
{
    (void)state;
    static char million[1000000];
    memset(million, 'a', sizeof million);
    check_sha("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_sha(million, sizeof million,
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void siphash_gives_the_values_of_the_paper(void **state)
{
    (void)state;
    const struct siphash_key key = {{0x0706050403020100u, 0x0f0e0d0c0b0a0908u}};
    unsigned char bytes[15];
    for (int i = 0; i < 15; i++)
        bytes[i] = (unsigned char)i;
    assert_true(siphash(&key, bytes, 15) == 0xa129ca6149be45e5u);
    assert_true(siphash(&key, bytes, 0) == 0x726fdb47dd0e0e31u);
}

static void siphash_keys_differ_each_time(void **state)
{
    (void)state;
    struct siphash_key a = siphash_key_random(), b = siphash_key_random();
    assert_memory_not_equal(&a, &b, sizeof a);
    assert_true(siphash(&a, "x", 1) != siphash(&b, "x", 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_gives_the_digests_of_the_standard),
        cmocka_unit_test(siphash_gives_the_values_of_the_paper),
        cmocka_unit_test(siphash_keys_differ_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
