/* SPDX-License-Identifier: Apache-2.0 */
/* dashboard.h - the operators' page, as scripts/embed-page made it of server/dashboard/. */
#ifndef WHET_SERVER_DASHBOARD_H
#define WHET_SERVER_DASHBOARD_H

#include <stddef.h>

extern const unsigned char dashboard_page[]; /* HTML, not terminated */
extern const size_t dashboard_size;
/* Value of Content-Security-Policy: nothing but the page's own script and style, by hash. */
extern const char dashboard_policy[];

#endif
