/* fields.c: the fields of all listings: events, dead letters, consumers, ... */
#include "listing/fields.h"

#include <string.h>

/* ---- events ---- */

static void event_key_text(struct buf *b, const void *row)
{
    const struct event *ev = row;
    if (!ev->aggregate_id.p)
        return;
    buf_addstr(b, ev->aggregate_type);
    buf_addc(b, '/');
    buf_addstr(b, ev->aggregate_id);
}

#define AT(member) .at = offsetof(struct event, member)
const struct listing_field fields_event[] = {
    {"id", LISTING_STR, AT(id), "id of the event, a UUID"},
    {"seq", LISTING_INT, AT(seq), "sequence number"},
    {"type", LISTING_STR, AT(type), "type of the event"},
    {"key", LISTING_STR, .text = event_key_text, .people_only = true},
    {"aggregate_type", LISTING_STR, AT(aggregate_type), "first part of the key, or null"},
    {"aggregate_id", LISTING_STR, AT(aggregate_id), "second part of the key, or null"},
    {"version", LISTING_INT, AT(version), "version of the aggregate, or null",
     .also = offsetof(struct event, has_version), .maybe = true},
    {"payload", LISTING_JSON, AT(payload), "the payload, as it was emitted"},
    {"headers", LISTING_JSON, AT(headers), "the headers, an object of strings", .none = "{}"},
    {"idempotency_key", LISTING_STR, AT(idempotency_key), "idempotency key, or null"},
    {"tenant", LISTING_STR, AT(tenant), "the tenant it belongs to, or null"},
    {"created_at", LISTING_TIME, AT(created_at), "when it was emitted", "CREATED", "created"},
    {"not_before", LISTING_TIME, AT(not_before), "when its delay ends, or null"},
    {NULL},
};
#undef AT

#define AT(member) .at = offsetof(struct delivery_info, member)
const struct listing_field fields_delivery[] = {
    {"consumer", LISTING_TEXT, AT(consumer), "name of the consumer"},
    {"state", LISTING_NAME, AT(state),
     "pending, in-flight, delivered, failed, expired, skipped, dropped or before-start",
     .names = delivery_state_names},
    {"attempts", LISTING_SMALL, AT(attempts), "attempts so far"},
    {"due_at", LISTING_TIME, AT(due_at), "when the next attempt is due, or null", "DUE"},
    {"error", LISTING_TEXT, AT(error), "why the last attempt failed, or null"},
    {"delivered_at", LISTING_TIME, AT(delivered_at),
     "when it was delivered, from its receipt; or null", "DELIVERED"},
    {"receipt", LISTING_TEXT, AT(receipt),
     "the sink's own id for it, such as a stream id, or null"},
    {NULL},
};
#undef AT

/* One word if all consumers agree, else consumer:state for each that wants the event. */
static void listed_event_states(struct buf *b, const void *row)
{
    const struct listed_event *l = row;
    bool agree = l->n > 0;
    for (size_t i = 1; i < l->n; i++)
        agree = agree && l->d[i].state == l->d[0].state;
    if (agree) {
        buf_adds(b, delivery_state_names[l->d[0].state]);
        return;
    }
    for (size_t i = 0; i < l->n; i++) {
        if (l->d[i].state != STATE_SKIPPED)
            buf_addf(b, "%s%s:%s", b->n ? " " : "", l->d[i].consumer,
                     delivery_state_names[l->d[i].state]);
    }
}

struct listed_event fields_event_row(const struct event *ev, const struct delivery_info *d,
                                     size_t n)
{
    struct listed_event row = {.ev = *ev, .d = d, .n = n};
    const struct delivery_info *first = NULL;
    for (size_t i = 0; i < n; i++) {
        if (d[i].state == STATE_FAILED && (!first || d[i].due_at < first->due_at))
            first = &d[i];
    }
    if (first) {
        row.next_at = first->due_at;
        row.error = first->error;
    }
    return row;
}

#define AT(member) .at = offsetof(struct listed_event, member)
const struct listing_field fields_listed_event[] = {
    {"event", LISTING_PART, AT(ev), .sub = fields_event},
    {"states", LISTING_TEXT, .heading = "STATE", .text = listed_event_states, .people_only = true},
    {"next", LISTING_TIME, AT(next_at), .heading = "NEXT ATTEMPT", .people_only = true},
    {"error", LISTING_TEXT, AT(error), .heading = "LAST ERROR", .people_only = true},
    {"deliveries", LISTING_LIST, AT(d), "state of the event for each consumer",
     .sub = fields_delivery, .also = offsetof(struct listed_event, n),
     .size = sizeof(struct delivery_info)},
    {NULL},
};
#undef AT

#define AT(member) .at = offsetof(struct listed_look, member)
const struct listing_field fields_looked[] = {
    {"partial", LISTING_BOOL, AT(looked.partial),
     "true: the listing did not search all events; this object is the last"},
    {"looked_from", LISTING_INT, AT(looked.from), "first sequence number searched"},
    {"looked_to", LISTING_INT, AT(looked.to), "last sequence number searched"},
    {"after", LISTING_INT, AT(after), "value of --after to continue"},
    {NULL},
};
#undef AT

#define AT(member) .at = offsetof(struct dead_letter, member)
const struct listing_field fields_dead_letter[] = {
    {"consumer", LISTING_TEXT, AT(consumer), "name of the consumer"},
    {"event", LISTING_PART, AT(ev), .sub = fields_event},
    {"attempts", LISTING_SMALL, AT(attempts), "attempts that were made"},
    {"error", LISTING_TEXT, AT(error), "why the last attempt failed"},
    {"dead_at", LISTING_TIME, AT(dead_at), "when it became a dead letter", "DIED", "died"},
    {"retrying", LISTING_BOOL, AT(retrying), "whether it is being retried"},
    {NULL},
};
#undef AT

#define AT(member) .at = offsetof(struct listed_mark, member)
const struct listing_field fields_mark[] = {
    {"stream", LISTING_TEXT, AT(stream), "name of the stream"},
    {"id", LISTING_TEXT, AT(id), "the last id written to it"},
    {"consumer", LISTING_TEXT, AT(consumer), "the consumer that recorded it"},
    {"at", LISTING_TIME, AT(at), "when it was recorded"},
    {NULL},
};
#undef AT

/* ---- consumers ---- */

/* Returns the first state that applies, in the order of an operator's questions: whether it runs,
 * can deliver, is delivering, has events left. */
const char *fields_consumer_state(const struct consumer_info *c)
{
    if (c->paused)
        return "paused";
    if (c->down)
        return "down";
    if (c->claims > 0)
        return "in-flight";
    if (c->parked > 0 && c->last_error)
        return "retrying";
    if (c->parked > 0)
        return "waiting"; /* for a delay to end */
    if (c->behind > 0 || !c->behind_exact)
        return "behind";
    return "idle";
}

const char *fields_patterns(const char *events)
{
    bool all = !events || !*events;
    return all ? "*" : events;
}

struct listed_consumer fields_consumer_row(const struct consumer_info *c, int64_t now_ms)
{
    return (struct listed_consumer){
        .c = *c,
        .state = fields_consumer_state(c),
        .now_ms = now_ms,
        .down_since = c->down ? c->report_at : 0,
        .has_first_parked = c->first_parked.seq != 0,
    };
}

static const struct listing_color state_colors[] = {{"paused", "yellow"},  {"down", "red"},
                                                    {"in-flight", "cyan"}, {"retrying", "magenta"},
                                                    {"idle", "green"},     {NULL, NULL}};
static const struct listing_color loss_colors[] = {{"0", NULL}, {NULL, "red"}};

static void consumer_first_parked_text(struct buf *b, const void *row)
{
    const struct listed_consumer *l = row;
    const struct parked_info *p = &l->c.first_parked;
    if (p->seq)
        buf_addf(b, "event %lld, overdue for %s; %s used, the next at %s", (long long)p->seq,
                 human_age(clock_since(l->now_ms, p->since)), human_count(p->attempts, "attempt"),
                 human_time(p->due_at));
}

/* The last error, with the start of the outage if the sink is down. */
static void consumer_trouble_text(struct buf *b, const void *row)
{
    const struct listed_consumer *l = row;
    const struct consumer_info *c = &l->c;
    if (!c->last_error)
        return;
    if (!c->down) {
        buf_adds(b, c->last_error);
        return;
    }
    buf_addf(b, "since %s: ", human_age(clock_since(l->now_ms, c->report_at)));
    buf_adds(b, c->report);
    if (c->claims == 0)
        buf_adds(b, " (last report from its relay; no relay holds a claim now)");
}

/* The position up to which everything is completed, and the cause that holds back the rest. */
static void consumer_floor_text(struct buf *b, const void *row)
{
    const struct listed_consumer *l = row;
    const char *pin = l->c.floor_pin ? l->c.floor_pin : "";
    buf_addi64(b, l->c.floor);
    if (strcmp(pin, "parked") == 0)
        buf_adds(b, "; parked events hold back the rest");
    if (strcmp(pin, "claim") == 0)
        buf_adds(b, "; a claim holds back the rest");
}

#define AT(member) .at = offsetof(struct listed_consumer, member)
#define ALSO(member) .also = offsetof(struct listed_consumer, member)
#define RATE ALSO(has_rates), .maybe = true, .optional = true
static const struct listing_field first_parked[] = {
    {"seq", LISTING_INT, AT(c.first_parked.seq), "sequence number"},
    {"overdue_ms", LISTING_AGE, AT(c.first_parked.since), ALSO(now_ms),
     .help = "how long it has been due"},
    {"attempts", LISTING_SMALL, AT(c.first_parked.attempts), "attempts so far"},
    {"due_at", LISTING_TIME, AT(c.first_parked.due_at), "when the next attempt is due"},
    {"error", LISTING_TEXT, AT(c.first_parked.error), "why the last attempt failed, or null"},
    {NULL},
};

const struct listing_field fields_consumer[] = {
    {"name", LISTING_TEXT, AT(c.spec.name), "name of the consumer"},
    {"state", LISTING_TEXT, AT(state), "paused, down, in-flight, retrying, waiting, behind or idle",
     .colors = state_colors},
    {"paused", LISTING_BOOL, AT(c.paused), "whether it is paused"},
    {"events", LISTING_TEXT, AT(c.spec.events),
     "patterns of the event types it wants; empty for all", .empty = "*"},
    {"where", LISTING_TEXT, AT(c.spec.where), "payload predicate; empty for none"},
    {"order", LISTING_NAME, AT(c.spec.order), "none, key or global", .names = store_order_names},
    {"lanes", LISTING_SMALL, AT(c.spec.lanes), "number of lanes"},
    {"retry", LISTING_TEXT, AT(c.spec.retry), "retry policy"},
    {"position", LISTING_INT, AT(c.position), "sequence number up to which events were claimed"},
    {"behind", LISTING_ABOUT, AT(c.behind), ALSO(c.behind_exact),
     .help = "events it wants that have not been delivered"},
    {"behind_exact", LISTING_BOOL, AT(c.behind_exact), "false: behind is an estimate"},
    {"lag_ms", LISTING_AGE, AT(c.oldest_at), "age of the oldest of these events", "LAG", "lag",
     ALSO(now_ms)},
    {"overdue_ms", LISTING_AGE, AT(c.overdue_at), ALSO(now_ms),
     .help = "how long the first of them has been due"},
    {"delivered", LISTING_INT, AT(c.delivered), "events delivered since it was created"},
    {"in_flight", LISTING_ABOUT, AT(c.inflight), ALSO(c.inflight_exact),
     .help = "events that workers have claimed"},
    {"in_flight_exact", LISTING_BOOL, AT(c.inflight_exact), "false: in_flight is an upper bound"},
    {"claims", LISTING_INT, AT(c.claims), "live claims", .label = "live claims"},
    {"owner", LISTING_TEXT, AT(c.owner), "the worker of one of them, or null",
     .label = "claimed by"},
    {"parked", LISTING_ABOUT, AT(c.parked), ALSO(c.parked_exact),
     .help = "events waiting for a retry, for their time or behind another event of the same key"},
    {"parked_exact", LISTING_BOOL, AT(c.parked_exact), "false: parked is an estimate"},
    {"first_parked", LISTING_OBJECT, .help = "the parked event that has been due longest, or null",
     .sub = first_parked, ALSO(has_first_parked), .maybe = true,
     .text = consumer_first_parked_text},
    {"dead", LISTING_INT, AT(c.dead), "dead letters", .label = "dead letters",
     .colors = loss_colors},
    {"next_due", LISTING_TIME, AT(c.next_due), "when the next retry is due, or null",
     .label = "next retry"},
    {"down_since", LISTING_TIME, AT(down_since), "when its sink went down, or null",
     .label = "sink down since"},
    {"last_error", LISTING_TEXT, AT(c.last_error), "error of the last failed delivery, or null"},
    {"last_error_at", LISTING_TIME, AT(c.last_error_at), "when it failed, or null"},
    {"floor", LISTING_INT, AT(c.floor), "events up to here are completed",
     .label = "completed up to", .text = consumer_floor_text},
    {"floor_pin", LISTING_TEXT, AT(c.floor_pin),
     "what holds back later events: position, parked or claim"},
    {"created_at", LISTING_TIME, AT(c.created_at), "when it was created", "CREATED", "created"},
    {"delivered_per_s", LISTING_INT, AT(delivered_per_s),
     "events delivered per second; only with status --watch", "DELIVERED/S", RATE},
    {"read_per_s", LISTING_INT, AT(read_per_s), .heading = "READ/S", .people_only = true, RATE},
    {"trouble", LISTING_TEXT, .heading = "LAST ERROR", .text = consumer_trouble_text,
     .people_only = true},
    {NULL},
};
#undef AT
#undef ALSO
#undef RATE

static const char *const generation_states[] = {"replaced", "current"};

#define AT(member) .at = offsetof(struct listed_generation, member)
const struct listing_field fields_generation[] = {
    {"generation", LISTING_SMALL, AT(s.generation), "number of these settings"},
    {"counts", LISTING_BOOL, AT(counts), "whether they are in effect", "STATE",
     .names = generation_states},
    {"events", LISTING_TEXT, AT(s.events), "patterns of event types; empty for all", .empty = "*"},
    {"where", LISTING_TEXT, AT(s.where), "payload predicate; empty for none"},
    {"order", LISTING_NAME, AT(s.order), "none, key or global", .names = store_order_names},
    {"lanes", LISTING_SMALL, AT(s.lanes), "number of lanes"},
    {"since", LISTING_TIME, AT(s.since), "when they were put into effect"},
    {"by", LISTING_TEXT, AT(s.by), "who changed them, or null"},
    {NULL},
};
#undef AT

/* ---- the store ---- */

#define AT(member) .at = offsetof(struct listed_status, member)
static const struct listing_field fields_store[] = {
    {"url", LISTING_TEXT, AT(url), "URL of the store, without its password"},
    {"schema_version", LISTING_SMALL, AT(info.schema_version), "version of the outbox"},
    {"events", LISTING_INT, AT(info.events), "events that are kept"},
    {"events_exact", LISTING_BOOL, AT(info.events_exact), "false: events is an upper bound"},
    {"head", LISTING_INT, AT(info.head), "highest sequence number assigned so far"},
    {"tail", LISTING_INT, AT(info.tail), "lowest sequence number kept; 0: none"},
    {"oldest_at", LISTING_TIME, AT(info.oldest_at), "when the oldest kept event was emitted"},
    {"consumers", LISTING_INT, AT(info.consumers), "number of consumers"},
    {"dead", LISTING_INT, AT(info.dead), "number of dead letters"},
    {"now", LISTING_TIME, AT(info.now_ms), "the time of the store's clock"},
    {NULL},
};

const struct listing_field fields_status[] = {
    {"store", LISTING_OBJECT, .at = 0, "the store", .sub = fields_store},
    {"consumers", LISTING_LIST, AT(consumer), "each of its consumers", .sub = fields_consumer,
     .also = offsetof(struct listed_status, n), .size = sizeof(struct listed_consumer)},
    {NULL},
};
#undef AT

#define AT(member) .at = offsetof(struct finding, member)
const struct listing_field fields_finding[] = {
    {"level", LISTING_NAME, AT(level), "ok, note, warning or problem",
     .names = finding_level_names},
    {"name", LISTING_TEXT, AT(name), "name of the check"},
    {"text", LISTING_TEXT, AT(text), "the finding, and why it matters"},
    {"advice", LISTING_TEXT, AT(advice), "how to fix it, or null"},
    {NULL},
};
