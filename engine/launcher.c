/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.c - one table of launchers: what each calls the rank, the world, and where rank 0 is.
 *
 * The first row whose rank is set counts. A launcher that says nothing of rank 0's address needs
 * MASTER_ADDR, unless it says that all ranks are on this host: they meet at the loopback then.
 * torchrun keeps its own store on MASTER_PORT, so there rank 0 listens on the port behind it.
 */
#include "engine/launcher.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/shard.h"

static const struct launcher {
    const char *name, *rank, *world, *local, *host, *host_list, *local_world;
} launchers[] = {
    {"RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", NULL, NULL, "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", NULL,
     NULL, "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", NULL, NULL, "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_NODELIST", NULL},
    {"LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", NULL, "LWS_LEADER_ADDRESS", NULL,
     NULL},
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

typedef const char *get_fn(const char *name);

static const char *value(get_fn *get, const char *name)
{
    const char *v = name ? get(name) : NULL;
    return v && *v ? v : NULL;
}

/* A whole number from `least` to `most`. */
static int number(get_fn *get, const char *name, int64_t least, int64_t most, int32_t *out,
                  struct err *err)
{
    const char *text = value(get, name);
    char *end;
    if (!text)
        return err_set(err, "engine.ranks = env: %s is not set", name);
    long long n = strtoll(text, &end, 10);
    if (*end || end == text || n < least || n > most)
        return err_set(err, "%s = '%.40s': expected a number from %lld to %lld", name, text,
                       (long long)least, (long long)most);
    *out = (int32_t)n;
    return 0;
}

/* The first host of Slurm's "node[003-007,9],other" as "node003". */
static bool first_host(const char *list, char *to, size_t n)
{
    size_t name = strcspn(list, "[,"), at = name;
    if (name >= n)
        return false;
    memcpy(to, list, name);
    if (list[name] == '[') {
        size_t digits = strspn(list + name + 1, "0123456789");
        if (digits == 0 || name + digits >= n)
            return false;
        memcpy(to + name, list + name + 1, digits);
        at += digits;
    }
    to[at] = 0;
    return at > 0;
}

static bool all_are_here(get_fn *get, const struct launcher *l, int32_t world)
{
    const char *local = value(get, l->local_world);
    return local && atoi(local) == world;
}

static bool is_address(const char *host)
{
    unsigned char any[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, any) == 1 || inet_pton(AF_INET6, host, any) == 1;
}

static int find_host(get_fn *get, const struct launcher *l, struct rank_place *p, struct err *err)
{
    const char *host = value(get, "MASTER_ADDR");
    host = host ? host : value(get, l->host);
    if (!host && value(get, l->host_list) &&
        first_host(value(get, l->host_list), p->host, sizeof p->host))
        return 0;
    if ((!host || !is_address(host)) && all_are_here(get, l, p->world))
        host = "127.0.0.1"; /* nobody else need reach it */
    if (!host)
        return err_set(err, "engine.ranks = env: MASTER_ADDR, the host of rank 0, is not set");
    if (strlen(host) >= sizeof p->host)
        return err_set(err, "MASTER_ADDR is %zu bytes long", strlen(host));
    strcpy(p->host, host);
    return 0;
}

static int find_port(get_fn *get, struct rank_place *p, struct err *err)
{
    const char *store = value(get, "TORCHELASTIC_USE_AGENT_STORE");
    p->port = RANK_PORT_USUAL;
    if (value(get, "MASTER_PORT") && number(get, "MASTER_PORT", 1, 65534, &p->port, err))
        return -1;
    p->port += store && !strcmp(store, "True");
    return 0;
}

int rank_place_read(struct rank_place *p, const char *(*get)(const char *name), struct err *err)
{
    const struct launcher *l = launchers;
    while (l < launchers + LAUNCHERS && !value(get, l->rank))
        l++;
    if (l == launchers + LAUNCHERS)
        return err_set(err,
                       "engine.ranks = env, but no launcher says which rank this is: set RANK, "
                       "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or start it with mpirun, srun "
                       "or torchrun");
    *p = (struct rank_place){.local_rank = -1, .listener = -1, .launcher = l->name};
    if (number(get, l->world, 1, SHARD_WORLD_MAX, &p->world, err) ||
        number(get, l->rank, 0, p->world - 1, &p->rank, err) ||
        (value(get, l->local) && number(get, l->local, 0, 1023, &p->local_rank, err)))
        return -1;
    return find_port(get, p, err) || find_host(get, l, p, err) ? -1 : 0;
}
