/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_agent_text.c - any bytes as the text of a CPU kernel. */
#include "tests/fuzz/agent_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_text(data, size, AGENT_C);
}
