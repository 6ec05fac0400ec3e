/* calls.c: decides whether a handler is called for an event, and what its answer means. */
#include <stdio.h>
#include <string.h>

#include "engine/pipeline_impl.h"

static const char silent[] = "a statement of the handler failed, but the handler reported success";
static const char own_record[] = "the handler wrote its own inbox record: only the library may "
                                 "write it";

/* ---- common to all modes ---- */

void calls_fail(struct calls *c, struct batch_state *b, size_t at, const char *why)
{
    if (c->fate[at] == CALL_ENDED)
        return;
    const char *kept = arena_bytes(&b->a, why, strlen(why));
    if (!kept)
        return;
    c->failure[at] = kept;
    c->fate[at] = CALL_FAILED;
}

static void say(struct handler_call *call, const char *text)
{
    snprintf(call->text, sizeof call->text, "%s", text);
}

static enum handler_entry wait_because(struct handler_call *call, const char *why)
{
    say(call, why);
    return HANDLER_WAIT;
}

/* Overrules a handler that reported success. */
static enum sink_status fail_because(struct handler_call *call, const char *why)
{
    say(call, why);
    return SINK_RETRY;
}

static void say_who_ended(const struct calls *c, size_t handler, struct handler_call *call)
{
    snprintf(call->text, sizeof call->text,
             "handler \"%s\" ended its transaction: a handler must neither commit nor roll back",
             c->h[handler].name);
}

/* Returns the answer for a call whose fate is known, or HANDLER_RUN if the call has to be made. */
static enum handler_entry known_fate(const struct calls *c, size_t handler, size_t at,
                                     struct handler_call *call)
{
    enum call_fate fate = c->fate[at];
    if (fate == CALL_RECORDED)
        return HANDLER_SKIP;
    if (fate == CALL_FAILED) {
        say(call, c->failure[at]);
        return HANDLER_FAIL;
    }
    if (fate == CALL_ENDED) {
        say_who_ended(c, handler, call);
        return HANDLER_REFUSE;
    }
    return HANDLER_RUN;
}

/* Checks the inbox after a call was undone because its record existed already. If the record has
 * disappeared, the call itself had written it. */
static int recorded_itself(struct effects *e, size_t at, bool *ret_own, struct error *err)
{
    bool there;
    if (e->st->ops->handled(e->st, &e->calls.key[at], 1, &there, err) != 0)
        return -1;
    *ret_own = !there;
    return 0;
}

/* Records the call in the inbox. *ret_first: it was not recorded before. */
static int record_call(struct effects *e, size_t at, bool *ret_first, struct error *err)
{
    static const bool skip_none = false;
    return e->st->ops->handled_put(e->st, &e->calls.key[at], &skip_none, 1, ret_first, err);
}

/* ---- before a call ---- */

static bool has_savepoint(const struct effects *e, size_t at)
{
    if (e->mode != MODE_PER_BATCH)
        return true;
    return e->calls.fate[at] == CALL_ALONE || e->calls.fate[at] == CALL_LOST;
}

enum handler_entry calls_enter(void *ctx, size_t handler, struct delivery *d,
                               struct handler_call *call)
{
    struct pipeline *p = ctx;
    struct effects *e = &p->effects;
    struct slot *slot = (struct slot *)d;
    struct error err;
    bool own = e->mode == MODE_PER_CALL;
    bool external = e->calls.h[handler].external;
    if (effects_acquire(e, &err) != 0 || effects_load(e, slot->batch, &err) != 0)
        return wait_because(call, err.text);
    if (!external)
        call->tx = e->st;
    if (!own && e->state == EFFECTS_IDLE && effects_open(p, slot->batch, &err) != 0)
        return wait_because(call, err.text);
    if (!own && e->state != EFFECTS_OPEN)
        return wait_because(call, "the transaction must be rolled back first");

    size_t at = calls_place(handler, slot);
    enum handler_entry known = known_fate(&e->calls, handler, at, call);
    if (known != HANDLER_RUN)
        return known;
    if (!own && !has_savepoint(e, at))
        return HANDLER_RUN;

    /* The record is checked before the call but written after it: written first, it would block the
     * worker that takes over from this one if this one hangs. */
    bool done;
    int r = e->st->ops->handled(e->st, &e->calls.key[at], 1, &done, &err);
    if (r == 0 && done)
        return HANDLER_SKIP;
    if (r == 0 && external) {
        effects_release(e); /* the handler's work outside may take long */
        return HANDLER_RUN;
    }
    if (r == 0 && own)
        r = e->st->ops->begin(e->st, &err);
    else if (r == 0)
        r = e->st->ops->savepoint(e->st, SAVEPOINT_SET, &err);
    if (r != 0 && !own)
        effects_break(e, NULL);
    if (r != 0)
        return wait_because(call, err.text);
    if (own)
        effects_freeze(p, true);
    return HANDLER_RUN;
}

/* ---- after a call that shares a transaction ---- */

/* Ends a call whose transaction cannot continue. The batch will be repeated. */
static enum sink_status start_over(struct effects *e, const struct error *why)
{
    effects_break(e, why);
    return SINK_CANCELLED;
}

/* Handles a call during which the transaction ended. The effects of other calls were rolled back
 * with it, or committed without a settlement. The batch is repeated without this call, and
 * committed calls are found in the inbox. If the handler failed, the database rolled the
 * transaction back, as SQLite does when the disk is full; that is an ordinary failure. */
static enum sink_status ended_tx(struct effects *e, size_t at, enum sink_status said,
                                 const struct handler_call *call)
{
    bool by_handler = said == SINK_DELIVERED || said == SINK_REJECT;
    const char *why = "the database rolled back the handler's transaction";
    if (call->text[0])
        why = call->text;

    if (by_handler)
        e->calls.fate[at] = CALL_ENDED;
    else
        calls_fail(&e->calls, e->batch, at, why);
    return start_over(e, NULL);
}

/* Records the call and keeps its effect, unless another worker was first: then that worker's effect
 * counts. */
static int keep_call(struct effects *e, size_t at, bool *ret_own, struct error *err)
{
    bool first;
    if (record_call(e, at, &first, err) != 0)
        return -1;
    if (first)
        return e->st->ops->savepoint(e->st, SAVEPOINT_RELEASE, err);

    if (e->st->ops->savepoint(e->st, SAVEPOINT_UNDO, err) != 0)
        return -1;
    return recorded_itself(e, at, ret_own, err);
}

/* Keeps or undoes the effect of a call, and returns its outcome. */
static enum sink_status leave_savepoint(struct effects *e, size_t at, enum sink_status said,
                                        struct handler_call *call)
{
    struct calls *c = &e->calls;
    enum tx_state state = e->st->ops->tx_state(e->st);
    if (state == TX_GONE)
        return ended_tx(e, at, said, call);
    if (state == TX_LOST) {
        bool lost_before = c->fate[at] == CALL_LOST;
        if (lost_before)
            calls_fail(c, e->batch, at, "the connection was lost while the handler was running");
        else
            c->fate[at] = CALL_LOST;
        return start_over(e, NULL);
    }
    bool hid_failure = state == TX_FAILED && said == SINK_DELIVERED;
    if (hid_failure)
        said = fail_because(call, silent);

    struct error err = {0};
    bool own = false;
    int r;
    if (said == SINK_DELIVERED)
        r = keep_call(e, at, &own, &err);
    else
        r = e->st->ops->savepoint(e->st, SAVEPOINT_UNDO, &err);

    bool savepoint_gone = r != 0 && err.code == ERR_MISUSE;
    if (savepoint_gone)
        return ended_tx(e, at, SINK_DELIVERED, call);
    if (r != 0)
        return start_over(e, &err);
    if (own)
        said = fail_because(call, own_record);
    if (said != SINK_DELIVERED)
        e->failures++;
    return said;
}

static enum sink_status leave_shared(struct effects *e, const struct slot *slot, size_t at,
                                     enum sink_status said, struct handler_call *call)
{
    e->last = slot;
    if (has_savepoint(e, at))
        return leave_savepoint(e, at, said, call);

    bool done = said == SINK_DELIVERED && e->st->ops->tx_state(e->st) == TX_OPEN;
    if (done) {
        e->calls.fate[at] = CALL_DONE;
        return said;
    }
    e->calls.fate[at] = CALL_ALONE;
    return start_over(e, NULL);
}

/* ---- after a call with its own transaction ---- */

/* Records, in a separate transaction, that a handler acted outside the database. A failure is
 * only logged: the handler has acted, and the event is settled as delivered. */
static void record_external(struct pipeline *p, size_t at)
{
    struct effects *e = &p->effects;
    struct error err;
    bool first;
    int r = effects_acquire(e, &err);
    if (r == 0)
        r = e->st->ops->begin(e->st, &err);
    if (r == 0) {
        r = record_call(e, at, &first, &err);
        if (r == 0)
            r = e->st->ops->commit(e->st, &err);
        if (r != 0)
            e->st->ops->rollback(e->st);
    }
    if (r != 0)
        pipeline_log(p, LOG_WARN_, "could not record that a handler ran, so it may run again: %s",
                     err.text);
}

/* Commits the effect of the call and its record, if the claim is still ours. */
static int commit_call(struct pipeline *p, const struct batch_state *b, size_t at, bool *ret_own,
                       struct error *err)
{
    struct effects *e = &p->effects;
    bool first, lost;
    if (record_call(e, at, &first, err) != 0)
        return -1;
    if (!first) {
        e->st->ops->rollback(e->st); /* another worker was first, and its effect counts */
        return recorded_itself(e, at, ret_own, err);
    }
    struct claim_lease lease = lease_of(p, &b->claim);
    if (e->st->ops->extend(e->st, &lease, &lost, err) != 0)
        return -1;
    if (lost)
        return err_set(err, ERR_LOST, "the claim was lost in the meantime");
    return e->st->ops->commit(e->st, err);
}

/* Returns the outcome of a call whose handler reported success. */
static enum sink_status end_call(struct pipeline *p, const struct slot *slot, size_t handler,
                                 struct handler_call *call)
{
    struct effects *e = &p->effects;
    struct error err = {.text = "?"};
    bool own = false;
    size_t at = calls_place(handler, slot);

    enum tx_state state = e->st->ops->tx_state(e->st);
    if (state == TX_GONE) {
        e->calls.fate[at] = CALL_ENDED;
        say_who_ended(&e->calls, handler, call);
        return SINK_REJECT;
    }
    if (state != TX_OPEN)
        return fail_because(call, silent);

    if (commit_call(p, slot->batch, at, &own, &err) != 0) {
        say(call, err.text);
        if (effects_refused(e, &err))
            return SINK_RETRY;
        return SINK_DOWN;
    }
    if (own)
        return fail_because(call, own_record);
    return SINK_DELIVERED;
}

static enum sink_status leave_own(struct pipeline *p, const struct slot *slot, size_t handler,
                                  enum sink_status said, struct handler_call *call)
{
    struct effects *e = &p->effects;
    if (said == SINK_DELIVERED)
        said = end_call(p, slot, handler, call);
    if (said != SINK_DELIVERED)
        e->st->ops->rollback(e->st);
    effects_freeze(p, false);
    return said;
}

enum sink_status calls_leave(void *ctx, size_t handler, struct delivery *d, enum sink_status said,
                             struct handler_call *call)
{
    struct pipeline *p = ctx;
    struct effects *e = &p->effects;
    const struct slot *slot = (struct slot *)d;
    size_t at = calls_place(handler, slot);
    call->tx = NULL;
    if (e->mode != MODE_PER_CALL)
        return leave_shared(e, slot, at, said, call);
    if (!e->calls.h[handler].external)
        return leave_own(p, slot, handler, said, call);
    if (said == SINK_DELIVERED)
        record_external(p, at);
    return said;
}
