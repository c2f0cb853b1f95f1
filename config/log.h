/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - one line an event on stderr: time, level, module, message. Any thread. */
#ifndef WHET_CONFIG_LOG_H
#define WHET_CONFIG_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Lines above this level are dropped. May change while threads log. */
void log_set_level(enum log_level level);
enum log_level log_level(void);
/* "error", "warn", "info", "debug" -> level; -1 if it is none of them. */
int log_level_parse(const char *name);

/* Whether the next of many lines that say the same is to be written: the first four, then each time
 * that there were twice as many. Counts in *n; set it to 0 when what was said is over. */
bool log_due(_Atomic uint64_t *n);

void log_write(enum log_level level, const char *module, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(module, ...) log_write(LOG_ERROR, module, __VA_ARGS__)
#define log_warn(module, ...) log_write(LOG_WARN, module, __VA_ARGS__)
#define log_info(module, ...) log_write(LOG_INFO, module, __VA_ARGS__)
#define log_debug(module, ...)                         \
    do {                                               \
        if (log_level() >= LOG_DEBUG)                  \
            log_write(LOG_DEBUG, module, __VA_ARGS__); \
    } while (0)

#endif
