/* standby.c: registering a consumer, and standing by while it has other settings than ours.
 *
 * In a rolling deploy workers with old and with new settings run side by side. The store takes the
 * new ones and refuses those they replaced, so the old workers stand by: they claim nothing, settle
 * what they have, and ask again now and then. They go on if an operator brings their settings
 * back. */
#include <stdio.h>

#include "engine/pipeline_impl.h"

#define AGAIN_MIN (1000 * MS_NS)
#define AGAIN_MAX (15000 * MS_NS)

static int put(struct pipeline *p, enum put how, struct error *err)
{
    char retry_text[RETRY_TEXT];
    struct consumer_spec spec = consumer_spec_of(p->c, retry_text);
    spec.how = how;
    spec.by = p->cfg.owner;
    return p->cfg.st->ops->consumer_put(p->cfg.st, &spec, NULL, err);
}

/* wait_on notes why we stand by, and says so in the log if it is news. */
static void wait_on(struct pipeline *p, const struct error *why)
{
    bool news = strcmp(p->standby.text, why->text) != 0;
    p->standby = *why;
    p->stats.standby = true;
    p->standby_delay = p->standby_delay ? p->standby_delay * 2 : AGAIN_MIN;
    if (p->standby_delay > AGAIN_MAX)
        p->standby_delay = AGAIN_MAX;
    p->standby_at = pipeline_now(p) + p->standby_delay;
    if (news)
        log_at(p->cfg.log, LOG_WARN_, p->c->name, "standing by: %s", why->text);
}

static void go_on(struct pipeline *p)
{
    log_at(p->cfg.log, LOG_INFO_, p->c->name, "its settings count again: going on");
    p->standby = (struct error){0};
    p->stats.standby = false;
    p->standby_at = p->standby_delay = 0;
    schedule_look_now(&p->schedule);
}

int pipeline_register(struct pipeline *p, struct error *err)
{
    struct error why;
    if (put(p, PUT_START, &why) == 0)
        return 0;
    if (why.code == ERR_CONFLICT && p->cfg.stand_by) {
        wait_on(p, &why);
        return 0;
    }
    if (err)
        *err = why;
    return -1;
}

void standby_enter(struct pipeline *p)
{
    p->standby = (struct error){.code = ERR_CONFLICT, .text = ""};
    p->stats.standby = true;
    p->standby_at = 0; /* the store knows why, and says so when it is asked */
}

bool standby_try(struct pipeline *p)
{
    struct error err;
    int64_t now = pipeline_now(p);
    if (now < p->standby_at || schedule_store_away(&p->schedule, now))
        return false;
    if (put(p, PUT_AGAIN, &err) == 0) {
        go_on(p);
        return true;
    }
    if (err.code == ERR_CONFLICT)
        wait_on(p, &err);
    else
        turn_store_failed(p, &err);
    return false;
}
