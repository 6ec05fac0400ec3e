/* manage.h: functions on a running outbox that a relay needs besides outbox.h. Not installed. */
#ifndef API_MANAGE_H
#define API_MANAGE_H

#include "api/worker.h"
#include "outbox.h"

/* manage_hooks sets functions that outbox_run calls in its thread: `started` once all consumers are
 * running, `reload` after manage_reload. Either may be NULL. Call it before outbox_run. */
void manage_hooks(outbox *ob, void (*started)(void *ctx), void (*reload)(void *ctx), void *ctx);
/* manage_reload requests a call of the reload hook. Any thread. It does nothing while outbox_run is
 * not running. */
void manage_reload(outbox *ob);

/* manage_start starts a consumer made by outbox_consumer_new; only the reload hook may call it. On
 * failure the consumer is not running, and the caller calls manage_stop. With `strict` it also
 * fails where the consumer would stand by (ERR_CONFLICT). */
int manage_start(outbox_consumer *c, bool strict, struct error *err);
/* manage_stop drains a consumer while the others continue, waits for its end and frees it; only the
 * reload hook may call it. */
void manage_stop(outbox_consumer *c);

/* manage_views copies the views of all running consumers; the caller frees *ret. Any thread. */
int manage_views(outbox *ob, struct worker_view **ret, size_t *ret_n, struct error *err);
/* manage_memory returns how much memory the events held by all consumers take. Any thread. */
struct manage_memory {
    int64_t limit, peak;
};
struct manage_memory manage_memory(const outbox *ob);
/* manage_store opens another handle on the store, which the caller closes. Any thread. */
int manage_store(outbox *ob, struct store **ret, struct error *err);
/* manage_log_level sets the level below which nothing is logged. Any thread. */
void manage_log_level(outbox *ob, int level);

#endif
