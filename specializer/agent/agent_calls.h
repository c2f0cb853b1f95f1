/* SPDX-License-Identifier: Apache-2.0 */
/* agent_calls.h - what a kernel's text may call, and that it never has hold of a function.
 *
 * A text needs functions to call them by name, and one pointer to a function, the team's barrier.
 * With any other it could walk from the address of one that the linker knows to those it does not
 * tell. So a call is a name with a parenthesis: of a function that the text defines, or of one on
 * the list of those that are there; such a name without its parenthesis is refused, and so are
 * calls through anything else, declarations that no body follows, and types of functions. What
 * arithmetic on pointers can do is not seen here: the process that the text runs in is sealed for
 * that (CPU), or the instructions are looked at (cubin.h). Pure; any thread. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_CALLS_H
#define WHET_SPECIALIZER_AGENT_AGENT_CALLS_H

#include "specializer/agent/agent_macros.h"

/* `code`: the tokens outside of directives. Tokens are paired, macros expanded. */
int calls_check(const struct tokens *t, const struct macros *m, const struct token *code, int n);

#endif
