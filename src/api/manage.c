#include "api/manage.h"

#include "api/api_impl.h"

void manage_hooks(outbox *ob, void (*started)(void *), void (*reload)(void *), void *ctx)
{
    ob->crew.started = started;
    ob->crew.reload = reload;
    ob->crew.hook_ctx = ctx;
}

void manage_reload(outbox *ob)
{
    crew_reload(&ob->crew);
}

int manage_views(outbox *ob, struct runner_view **ret, size_t *ret_n, struct error *err)
{
    return crew_views(&ob->crew, ret, ret_n, err);
}

struct manage_memory manage_memory(const outbox *ob)
{
    const struct crew *w = &ob->crew;
    return (struct manage_memory){.limit = w->memory,
                                  .peak = (int64_t)atomic_load(&w->budget.peak)};
}

int manage_store(outbox *ob, struct store **ret, struct error *err)
{
    return ob->st->ops->dup(ob->st, ret, err);
}

void manage_log_level(outbox *ob, int level)
{
    atomic_store_explicit(&ob->log.least, level, memory_order_relaxed);
}

/* manage_start starts all runners of the consumer, or none. */
int manage_start(outbox_consumer *c, bool strict, struct error *err)
{
    if (api_consumer_expand(c, err) != 0)
        return -1;
    for (size_t i = 0; i < c->n_runners; i++) {
        if (crew_add(&c->ob->crew, c->runners[i], strict, err) == 0)
            continue;
        while (i-- > 0)
            crew_remove(&c->ob->crew, c->runners[i]);
        return -1;
    }
    return 0;
}

/* manage_stop unlinks the consumer under the lock, because outbox_wake goes through the list. */
void manage_stop(outbox_consumer *c)
{
    outbox *ob = c->ob;
    outbox_consumer **at = &ob->consumers;
    for (size_t i = 0; i < c->n_runners; i++)
        crew_remove(&ob->crew, c->runners[i]);
    pthread_mutex_lock(&ob->crew.lock);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&ob->crew.lock);
    api_consumer_free(c);
}
