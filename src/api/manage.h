/* manage.h: what a relay needs of an outbox at work, besides outbox.h. Not installed. */
#ifndef API_MANAGE_H
#define API_MANAGE_H

#include "api/runner.h"
#include "outbox.h"

/* manage_hooks, before outbox_run: `started` is called once all consumers are at work, `reload`
 * after manage_reload; both in the thread of outbox_run, and either may be NULL. */
void manage_hooks(outbox *ob, void (*started)(void *ctx), void (*reload)(void *ctx), void *ctx);
/* manage_reload has the hook called soon. Any thread; nothing happens while outbox_run is not at
 * work. */
void manage_reload(outbox *ob);

/* In the reload hook only: manage_start sets a consumer of outbox_consumer_new to work. On failure
 * it is not at work, and the caller stops it. `strict`: it fails, too, with ERR_CONFLICT, where the
 * consumer would stand by. manage_stop lets one drain (the others go on), waits for its end and
 * frees it. */
int manage_start(outbox_consumer *c, bool strict, struct error *err);
void manage_stop(outbox_consumer *c);

/* manage_views copies what there is to see of the consumers at work; the caller frees *ret. Any
 * thread. */
int manage_views(outbox *ob, struct runner_view **ret, size_t *ret_n, struct error *err);
/* manage_store opens a store handle of the caller's own. Any thread. */
int manage_store(outbox *ob, struct store **ret, struct error *err);
/* manage_log_level sets the least level that is logged. Any thread. */
void manage_log_level(outbox *ob, int level);

#endif
