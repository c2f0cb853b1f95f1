/* SPDX-License-Identifier: Apache-2.0 */
/* memory_world.h - a fleet without a thread or a store: what it keeps of others. Included behind
 * specializer/fleet/fleet_memory.c, by tests and by a fuzzer. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_FLEET_MEMORY_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_FLEET_MEMORY_WORLD_H

/* `slots` stay the caller's. */
static inline struct fleet *memory_open(struct dispatch *slots)
{
    struct fleet *f = xcalloc(1, sizeof *f);
    f->slots = slots;
    f->rows = xcalloc((size_t)dispatch_slots(slots), sizeof *f->rows);
    f->wake_fd = -1;
    atomic_store(&f->stop, true); /* the store is not looked at */
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->in_use, NULL);
    return f;
}

static inline void memory_close(struct fleet *f)
{
    for (int i = 0; i < dispatch_slots(f->slots); i++)
        free(f->rows[i].row);
    free(f->rows);
    free(f->suspect);
    free(f);
}

#endif
