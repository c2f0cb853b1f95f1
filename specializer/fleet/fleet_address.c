/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_address.c - see fleet_address.h. */
#include "specializer/fleet/fleet_address.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* An address that cannot be read may have a password in it, and libpq's words quote what it did not
 * understand. */
static bool may_have_password(const char *uri)
{
    const char *user = strstr(uri, "://"), *host = strrchr(uri, '@');
    return strcasestr(uri, "pass") ||
           (user && host && memchr(user + 3, ':', (size_t)(host - user)));
}

/* Why this part of an address cannot be one, or NULL. */
static const char *wrong_part(const PQconninfoOption *o)
{
    if (o->val && strcmp(o->keyword, "password") == 0)
        return "a password belongs into specializer.fleet_key_file, not into the address";
    if (o->val && strcmp(o->keyword, "sslpassword") == 0)
        return "sslpassword does not belong into the address: use a key file without a password, "
               "or a service file (service=NAME)";
    /* What is behind a ':' may be a password with a '/' in it. */
    if (o->val && strcmp(o->keyword, "port") == 0 && o->val[strspn(o->val, "0123456789,")])
        return "the port is no number";
    return NULL;
}

PQconninfoOption *fleet_address_parse(const struct fleet_address *a, struct err *err)
{
    char *why = NULL, words[FLEET_WORD];
    PQconninfoOption *all = PQconninfoParse(a->uri, &why);
    if (!all) {
        fleet_plain(why ? why : "it cannot be read", words);
        err_set(err, "specializer.fleet: %s",
                may_have_password(a->uri)
                    ? "it cannot be read; a password belongs into specializer.fleet_key_file"
                    : words);
    }
    PQfreemem(why);
    for (PQconninfoOption *o = all; o && o->keyword; o++)
        if (wrong_part(o)) {
            err_set(err, "specializer.fleet: %s", wrong_part(o));
            PQconninfoFree(all);
            return NULL;
        }
    return all;
}

int fleet_password_read(const char *path, char out[FLEET_PASSWORD_MOST], struct err *err)
{
    FILE *in = fopen(path, "r");
    if (!in)
        return err_set(err, "specializer.fleet_key_file %s: %s", path, strerror(errno));
    bool read = fgets(out, FLEET_PASSWORD_MOST, in) != NULL;
    size_t n = read ? strcspn(out, "\r\n") : 0;
    bool whole = n < FLEET_PASSWORD_MOST - 1 || fgetc(in) == EOF;
    fclose(in);
    out[n] = 0;
    if (!whole)
        return err_set(err, "specializer.fleet_key_file %s: its first line has more than %d bytes",
                       path, FLEET_PASSWORD_MOST - 1);
    if (!out[0])
        return err_set(err, "specializer.fleet_key_file %s holds no password", path);
    return 0;
}

int fleet_db_check(const struct fleet_address *a, struct err *err)
{
    PQconninfoOption *all = fleet_address_parse(a, err);
    PQconninfoFree(all);
    return all ? 0 : -1;
}
