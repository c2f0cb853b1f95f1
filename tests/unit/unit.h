/* unit.h - cmocka with the headers it forgets to include, and nothing else. */
#ifndef WHET_TESTS_UNIT_H
#define WHET_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
