/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h - cmocka with the headers it forgets to include, and whether a sanitizer looks on.
 *
 * SANITIZED programs are five to ten times slower; a test that runs much the same code over and
 * over does so less often there, since what a sanitizer finds it finds the first time.
 * THREADS_WATCHED: by ThreadSanitizer, which finds nothing where there is one thread.
 */
#ifndef WHET_TESTS_UNIT_UNIT_H
#define WHET_TESTS_UNIT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#if __has_feature(thread_sanitizer)
#define THREADS_WATCHED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#if defined(__SANITIZE_THREAD__) && !defined(THREADS_WATCHED)
#define THREADS_WATCHED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif
#ifndef THREADS_WATCHED
#define THREADS_WATCHED 0
#endif

#endif
