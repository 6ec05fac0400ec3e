/* standby.c: registers the consumer, and stands by while it has newer settings than ours.
 *
 * In a rolling deploy, workers with old and new settings run side by side. The store accepts the
 * new settings and refuses those they replaced, so the old workers stand by: they settle their
 * claims, claim nothing more, and retry periodically. They continue if an operator restores their
 * settings. */
#include "base/num.h"
#include "engine/pipeline_impl.h"

#define AGAIN_MIN (1000 * MS_NS)
#define AGAIN_MAX (15000 * MS_NS)
#define LEASE_OVER_MS 1

static int register_consumer(struct pipeline *p, enum put how, struct error *err)
{
    char retry_text[RETRY_TEXT];
    struct consumer_spec spec = consumer_spec_of(p->c, retry_text);
    spec.how = how;
    spec.by = p->cfg.owner;
    return p->cfg.st->ops->consumer_put(p->cfg.st, &spec, NULL, err);
}

/* Notes why we stand by, logs it if the reason is new, and sets the time of the next try.
 */
static void stay_on_standby(struct pipeline *p, const struct error *why)
{
    struct standby *s = &p->standby;
    bool news = strcmp(s->why.text, why->text) != 0;
    s->why = *why;
    s->delay = max_i64(AGAIN_MIN, min_i64(2 * s->delay, AGAIN_MAX));
    s->at = pipeline_now(p) + s->delay;
    p->stats.standby = true;
    if (news)
        log_at(p->cfg.log, LOG_WARN_, p->c->name, "standing by: %s", why->text);
}

/* Ends the leases of workers whose process is known to have ended, oldest claim first. Their events
 * need not wait: a relay that was killed is usually restarted at once. If anything fails here,
 * leases simply expire. */
static void end_leases(struct pipeline *p)
{
    struct store *st = p->cfg.st;
    struct claim_info *claims;
    struct arena a;
    struct error err;
    size_t n = 0, ended = 0;
    bool lost;
    if (!p->cfg.gone)
        return;

    arena_init(&a, 0);
    if (st->ops->claims(st, p->c->name, &a, &claims, &n, &err) != 0)
        n = 0;
    for (size_t i = 0; i < n; i++) {
        struct claim_lease l = {.consumer = p->c->name,
                                .owner = claims[i].owner,
                                .epoch = claims[i].epoch,
                                .lease_ms = LEASE_OVER_MS};
        if (p->cfg.gone(l.owner) && st->ops->extend(st, &l, &lost, &err) == 0)
            ended++;
    }
    arena_release(&a);
    if (ended > 0)
        log_at(p->cfg.log, LOG_INFO_, p->c->name,
               "a worker on this machine ended and left %zu claim%s; taking over", ended,
               ended == 1 ? "" : "s");
}

int standby_register(struct pipeline *p, struct error *err)
{
    struct error why;
    if (register_consumer(p, PUT_START, &why) == 0) {
        end_leases(p);
        return 0;
    }

    bool replaced = why.code == ERR_CONFLICT;
    if (replaced && p->cfg.stand_by) {
        stay_on_standby(p, &why);
        return 0;
    }
    if (err)
        *err = why;
    return -1;
}

void standby_enter(struct pipeline *p)
{
    p->standby.why = (struct error){.code = ERR_CONFLICT, .text = ""};
    p->standby.at = 0; /* standby_try tries at once; the store's error gives the reason */
    p->stats.standby = true;
}

bool standby_try(struct pipeline *p)
{
    struct error err;
    int64_t now = pipeline_now(p);
    if (now < p->standby.at || schedule_store_away(&p->schedule, now))
        return false;
    if (register_consumer(p, PUT_AGAIN, &err) == 0) {
        log_at(p->cfg.log, LOG_INFO_, p->c->name, "its settings are in force again: resuming");
        p->standby = (struct standby){0};
        p->stats.standby = false;
        schedule_look_now(&p->schedule);
        return true;
    }
    if (err.code == ERR_CONFLICT)
        stay_on_standby(p, &err);
    else
        exchange_store_failed(p, &err);
    return false;
}
