/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.h - Ctrl-C and SIGTERM: what is under way is finished, what was found is kept. */
#ifndef WHET_TUNE_INTERRUPT_H
#define WHET_TUNE_INTERRUPT_H

#include "specializer/session.h"

/* The next such signal stops the session; one after it ends the process. One session at a time. */
void interrupt_stops(struct session *session);
/* Before that session is closed. */
void interrupt_done(void);

#endif
