/* fields.c: the fields of all listings: events, dead letters, consumers, ... */
#include "listing/fields.h"

#include <string.h>

#define END \
    { \
        NULL \
    }

/* ---- events ---- */

static bool event_version(const void *row, struct listing_value *ret)
{
    const struct event *ev = row;
    ret->n = ev->version;
    return ev->has_version;
}

static bool event_headers(const void *row, struct listing_value *ret)
{
    const struct event *ev = row;
    ret->text = ev->headers.p ? ev->headers : STR("{}");
    return true;
}

static void event_headers_text(struct buf *b, const void *row)
{
    const struct event *ev = row;
    if (ev->headers.p)
        member_flat(b, ev->headers);
}

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
    {"aggregate_type", LISTING_STR, AT(aggregate_type), "first part of its key, or null"},
    {"aggregate_id", LISTING_STR, AT(aggregate_id), "second part of its key, or null"},
    {"version", LISTING_INT, .get = event_version, .help = "version of the aggregate, or null"},
    {"payload", LISTING_JSON, AT(payload), "the payload, as it was emitted"},
    {"headers", LISTING_JSON, .get = event_headers, .text = event_headers_text,
     .help = "the headers, an object of strings"},
    {"idempotency_key", LISTING_STR, AT(idempotency_key), "its idempotency key, or null"},
    {"tenant", LISTING_STR, AT(tenant), "the tenant it belongs to, or null"},
    {"created_at", LISTING_TIME, AT(created_at), "when it was emitted", "CREATED", "created"},
    {"not_before", LISTING_TIME, AT(not_before), "when its delay ends, or null"},
    END,
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
    END,
};
#undef AT

static const void *listed_event_itself(const void *row, size_t i)
{
    (void)i;
    return ((const struct listed_event *)row)->ev;
}

static const void *listed_event_delivery(const void *row, size_t i)
{
    const struct listed_event *l = row;
    return i < l->n ? &l->d[i] : NULL;
}

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

/* Returns the delivery whose next attempt comes first; NULL: none has failed. */
static const struct delivery_info *first_failed(const struct listed_event *l)
{
    const struct delivery_info *first = NULL;
    for (size_t i = 0; i < l->n; i++) {
        const struct delivery_info *d = &l->d[i];
        if (d->state == STATE_FAILED && (!first || d->due_at < first->due_at))
            first = d;
    }
    return first;
}

static bool listed_event_due(const void *row, struct listing_value *ret)
{
    const struct delivery_info *d = first_failed(row);
    ret->n = d ? d->due_at : 0;
    return ret->n != 0;
}

static bool listed_event_error(const void *row, struct listing_value *ret)
{
    const struct delivery_info *d = first_failed(row);
    ret->text = str_of(d ? d->error : NULL);
    return ret->text.p;
}

const struct listing_field fields_listed_event[] = {
    {"event", LISTING_PART, .sub = fields_event, .nth = listed_event_itself},
    {"states", LISTING_TEXT, .heading = "STATE", .text = listed_event_states, .people_only = true},
    {"next", LISTING_TIME, .heading = "NEXT ATTEMPT", .get = listed_event_due, .people_only = true},
    {"error", LISTING_TEXT, .heading = "LAST ERROR", .get = listed_event_error,
     .people_only = true},
    {"deliveries", LISTING_LIST, .sub = fields_delivery, .nth = listed_event_delivery,
     .help = "its state for each consumer"},
    END,
};

#define AT(member) .at = offsetof(struct listed_look, member)
const struct listing_field fields_looked[] = {
    {"partial", LISTING_BOOL, AT(looked.partial),
     "true: the listing did not search all events; this object is the last"},
    {"looked_from", LISTING_INT, AT(looked.from), "first sequence number searched"},
    {"looked_to", LISTING_INT, AT(looked.to), "last sequence number searched"},
    {"after", LISTING_INT, AT(after), "value of --after to continue"},
    END,
};
#undef AT

#define AT(member) .at = offsetof(struct dead_letter, member)
const struct listing_field fields_dead_letter[] = {
    {"consumer", LISTING_TEXT, AT(consumer), "name of the consumer"},
    {"event", LISTING_PART, AT(ev), .sub = fields_event},
    {"attempts", LISTING_SMALL, AT(attempts), "attempts that were made"},
    {"error", LISTING_TEXT, AT(error), "why the last attempt failed"},
    {"dead_at", LISTING_TIME, AT(dead_at), "when it became a dead letter", "DIED", "died"},
    {"retrying", LISTING_BOOL, AT(retrying), "whether it was sent back and is being delivered"},
    END,
};
#undef AT

#define AT(member) .at = offsetof(struct listed_mark, member)
const struct listing_field fields_mark[] = {
    {"stream", LISTING_TEXT, AT(stream), "name of the stream"},
    {"id", LISTING_TEXT, AT(id), "the last id written to it"},
    {"consumer", LISTING_TEXT, AT(consumer), "the consumer that recorded it"},
    {"at", LISTING_TIME, AT(at), "when it was recorded"},
    END,
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

static bool consumer_state(const void *row, struct listing_value *ret)
{
    const struct listed_consumer *l = row;
    ret->text = str_of(fields_consumer_state(&l->c));
    return true;
}

static const char *consumer_state_color(const void *row)
{
    static const char *const colors[][2] = {{"paused", "yellow"},
                                            {"down", "red"},
                                            {"in-flight", "cyan"},
                                            {"retrying", "magenta"},
                                            {"idle", "green"}};
    const struct listed_consumer *l = row;
    const char *state = fields_consumer_state(&l->c);
    for (size_t i = 0; i < sizeof(colors) / sizeof(*colors); i++) {
        if (strcmp(colors[i][0], state) == 0)
            return colors[i][1];
    }
    return NULL;
}

static const char *consumer_dead_color(const void *row)
{
    const struct listed_consumer *l = row;
    return l->c.dead ? "red" : NULL;
}

static void consumer_events_text(struct buf *b, const void *row)
{
    const struct listed_consumer *l = row;
    buf_adds(b, fields_patterns(l->c.spec.events));
}

static const void *consumer_first_parked(const void *row, size_t i)
{
    const struct listed_consumer *l = row;
    (void)i;
    return l->c.first_parked.seq ? l : NULL;
}

static void consumer_first_parked_text(struct buf *b, const void *row)
{
    const struct listed_consumer *l = row;
    const struct parked_info *p = &l->c.first_parked;
    char age[HUMAN_AGE], due[CLOCK_RFC3339_SIZE], attempts[HUMAN_COUNT];
    if (p->seq)
        buf_addf(b, "event %lld, overdue for %s; %s used, the next at %s", (long long)p->seq,
                 human_age(clock_since(l->now_ms, p->since), age),
                 human_count(p->attempts, "attempt", attempts), human_time(p->due_at, due));
}

static bool consumer_down_since(const void *row, struct listing_value *ret)
{
    const struct listed_consumer *l = row;
    ret->n = l->c.report_at;
    return l->c.down && ret->n;
}

/* The last error, with the start of the outage if the sink is down. */
static void consumer_trouble_text(struct buf *b, const void *row)
{
    const struct listed_consumer *l = row;
    const struct consumer_info *c = &l->c;
    char age[HUMAN_AGE];
    if (!c->last_error)
        return;
    if (!c->down) {
        buf_adds(b, c->last_error);
        return;
    }
    buf_addf(b, "since %s: ", human_age(clock_since(l->now_ms, c->report_at), age));
    buf_adds(b, c->report);
    if (c->claims == 0)
        buf_adds(b, " (last report of its relay; no relay has a claim now)");
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

static bool has_delivery_rate(const void *row)
{
    return ((const struct listed_consumer *)row)->delivered_per_s >= 0;
}

static bool consumer_delivery_rate(const void *row, struct listing_value *ret)
{
    ret->n = ((const struct listed_consumer *)row)->delivered_per_s;
    return ret->n >= 0;
}

static bool consumer_read_rate(const void *row, struct listing_value *ret)
{
    ret->n = ((const struct listed_consumer *)row)->read_per_s;
    return ret->n >= 0;
}

#define AT(member) .at = offsetof(struct listed_consumer, member)
#define ALSO(member) .also = offsetof(struct listed_consumer, member)
static const struct listing_field first_parked[] = {
    {"seq", LISTING_INT, AT(c.first_parked.seq), "its sequence number"},
    {"overdue_ms", LISTING_AGE, AT(c.first_parked.since), ALSO(now_ms),
     .help = "how long it has been due"},
    {"attempts", LISTING_SMALL, AT(c.first_parked.attempts), "attempts so far"},
    {"due_at", LISTING_TIME, AT(c.first_parked.due_at), "when the next attempt is due"},
    {"error", LISTING_TEXT, AT(c.first_parked.error), "why the last attempt failed, or null"},
    END,
};

const struct listing_field fields_consumer[] = {
    {"name", LISTING_TEXT, AT(c.spec.name), "name of the consumer"},
    {"state", LISTING_TEXT, .get = consumer_state, .color = consumer_state_color,
     .help = "paused, down, in-flight, retrying, waiting, behind or idle"},
    {"paused", LISTING_BOOL, AT(c.paused), "whether it is paused"},
    {"events", LISTING_TEXT, AT(c.spec.events), .text = consumer_events_text,
     .help = "patterns of the event types it wants; empty for all"},
    {"where", LISTING_TEXT, AT(c.spec.where), "its payload predicate; empty for none"},
    {"order", LISTING_NAME, AT(c.spec.order), "none, key or global", .names = store_order_names},
    {"lanes", LISTING_SMALL, AT(c.spec.lanes), "number of lanes"},
    {"retry", LISTING_TEXT, AT(c.spec.retry), "its retry policy"},
    {"position", LISTING_INT, AT(c.position), "sequence number up to which events were claimed"},
    {"behind", LISTING_ABOUT, AT(c.behind), ALSO(c.behind_exact),
     .help = "events it wants that are not delivered"},
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
     .help = "events that wait for a retry, for their time or behind another of their key"},
    {"parked_exact", LISTING_BOOL, AT(c.parked_exact), "false: parked is an estimate"},
    {"first_parked", LISTING_OBJECT, .sub = first_parked, .nth = consumer_first_parked,
     .text = consumer_first_parked_text,
     .help = "the parked event that has been due longest, or null"},
    {"dead", LISTING_INT, AT(c.dead), "dead letters", .label = "dead letters",
     .color = consumer_dead_color},
    {"next_due", LISTING_TIME, AT(c.next_due), "when the next retry is due, or null",
     .label = "next retry"},
    {"down_since", LISTING_TIME, .get = consumer_down_since, .label = "sink down since",
     .help = "when its sink went down, or null"},
    {"last_error", LISTING_TEXT, AT(c.last_error), "why a delivery failed last, or null"},
    {"last_error_at", LISTING_TIME, AT(c.last_error_at), "when it failed, or null"},
    {"floor", LISTING_INT, AT(c.floor), "events up to here are completed",
     .label = "completed up to", .text = consumer_floor_text},
    {"floor_pin", LISTING_TEXT, AT(c.floor_pin),
     "what holds back later events: position, parked or claim"},
    {"created_at", LISTING_TIME, AT(c.created_at), "when it was created", "CREATED", "created"},
    {"delivered_per_s", LISTING_INT, .heading = "DELIVERED/S", .get = consumer_delivery_rate,
     .only = has_delivery_rate, .help = "events delivered per second; only with status --watch"},
    {"read_per_s", LISTING_INT, .heading = "READ/S", .get = consumer_read_rate,
     .people_only = true},
    {"trouble", LISTING_TEXT, .heading = "LAST ERROR", .text = consumer_trouble_text,
     .people_only = true},
    END,
};
#undef AT
#undef ALSO

static void generation_events_text(struct buf *b, const void *row)
{
    const struct listed_generation *g = row;
    buf_adds(b, fields_patterns(g->s.events));
}

static void generation_state_text(struct buf *b, const void *row)
{
    const struct listed_generation *g = row;
    buf_adds(b, g->counts ? "current" : "replaced");
}

#define AT(member) .at = offsetof(struct listed_generation, member)
const struct listing_field fields_generation[] = {
    {"generation", LISTING_SMALL, AT(s.generation), "number of these settings"},
    {"counts", LISTING_BOOL, AT(counts), "whether they are in effect", "STATE",
     .text = generation_state_text},
    {"events", LISTING_TEXT, AT(s.events), .text = generation_events_text,
     .help = "patterns of event types; empty for all"},
    {"where", LISTING_TEXT, AT(s.where), "payload predicate; empty for none"},
    {"order", LISTING_NAME, AT(s.order), "none, key or global", .names = store_order_names},
    {"lanes", LISTING_SMALL, AT(s.lanes), "number of lanes"},
    {"since", LISTING_TIME, AT(s.since), "when they were put into effect"},
    {"by", LISTING_TEXT, AT(s.by), "who changed them, or null"},
    END,
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
    END,
};
#undef AT

static const void *status_store(const void *row, size_t i)
{
    (void)i;
    return row;
}

static const void *status_consumer(const void *row, size_t i)
{
    const struct listed_status *s = row;
    return i < s->n ? &s->consumer[i] : NULL;
}

const struct listing_field fields_status[] = {
    {"store", LISTING_OBJECT, .sub = fields_store, .nth = status_store, .help = "the store"},
    {"consumers", LISTING_LIST, .sub = fields_consumer, .nth = status_consumer,
     .help = "each of its consumers"},
    END,
};

#define AT(member) .at = offsetof(struct finding, member)
const struct listing_field fields_finding[] = {
    {"level", LISTING_NAME, AT(level), "ok, note, warning or problem",
     .names = finding_level_names},
    {"name", LISTING_TEXT, AT(name), "name of the check"},
    {"text", LISTING_TEXT, AT(text), "the finding, and why it matters"},
    {"advice", LISTING_TEXT, AT(advice), "how to fix it, or null"},
    END,
};
