/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_address.h - the address of a fleet's database as libpq reads it, and the password for it.
 *
 * Addresses end up in process lists, so none may have a password in it; and what is said of one
 * that cannot be read must not repeat a password either. Any thread.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_ADDRESS_H
#define WHET_SPECIALIZER_FLEET_FLEET_ADDRESS_H

#include <libpq-fe.h>

#include "specializer/fleet/fleet_db.h"

/* Tokens that clouds give out as passwords have thousands of bytes. */
enum { FLEET_PASSWORD_MOST = 16384 };

/* All options, those that the address does not name with NULL as their value; the caller frees them
 * by PQconninfoFree(). NULL with a message if the address cannot be used. */
PQconninfoOption *fleet_address_parse(const struct fleet_address *a, struct err *err);
/* The first line of the file, without the end of the line. -1: there is none, or it is too long. */
int fleet_password_read(const char *path, char out[FLEET_PASSWORD_MOST], struct err *err);

#endif
