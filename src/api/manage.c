#include "api/manage.h"

#include "api/api_impl.h"

void manage_hooks(outbox *ob, void (*started)(void *), void (*reload)(void *), void *ctx)
{
    ob->sv.started = started;
    ob->sv.reload = reload;
    ob->sv.hook_ctx = ctx;
}

void manage_reload(outbox *ob)
{
    supervisor_reload(&ob->sv);
}

int manage_views(outbox *ob, struct worker_view **ret, size_t *ret_n, struct error *err)
{
    return supervisor_views(&ob->sv, ret, ret_n, err);
}

struct manage_memory manage_memory(const outbox *ob)
{
    const struct supervisor *sv = &ob->sv;
    return (struct manage_memory){.limit = sv->memory,
                                  .peak = (int64_t)atomic_load(&sv->budget.peak)};
}

int manage_store(outbox *ob, struct store **ret, struct error *err)
{
    return ob->st->ops->dup(ob->st, ret, err);
}

void manage_log_level(outbox *ob, int level)
{
    atomic_store_explicit(&ob->log.least, level, memory_order_relaxed);
}

/* Starts all workers of the consumer, or none. */
int manage_start(outbox_consumer *c, bool strict, struct error *err)
{
    if (api_consumer_expand(c, err) != 0)
        return -1;
    for (size_t i = 0; i < c->n_workers; i++) {
        if (supervisor_add(&c->ob->sv, c->workers[i], strict, err) == 0)
            continue;
        while (i-- > 0)
            supervisor_remove(&c->ob->sv, c->workers[i]);
        return -1;
    }
    return 0;
}

/* Unlinks the consumer under the lock, because outbox_wake goes through the list. */
void manage_stop(outbox_consumer *c)
{
    outbox *ob = c->ob;
    outbox_consumer **at = &ob->consumers;
    for (size_t i = 0; i < c->n_workers; i++)
        supervisor_remove(&ob->sv, c->workers[i]);
    pthread_mutex_lock(&ob->sv.lock);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&ob->sv.lock);
    api_consumer_free(c);
}
