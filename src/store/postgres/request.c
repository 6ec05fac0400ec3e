/* request.c: the request of a turn, as the parameter of a statement: an array of the type _request
 * (sql/postgres/0001_outbox.sql) in PostgreSQL's text format. For outcomes see
 * sql/postgres/functions/settle.sql. Fresh events that failed in the same way, or wait behind such
 * events, are sent as a set with their keys, so that the server can park them without a lookup
 * (sql/postgres/internal/settle.sql). */
#include "base/json.h"
#include "base/text.h"
#include "store/postgres/postgres.h"

#define SETS_MAX 8
#define JSON_BYTES (16 << 20) /* of outcomes, or of marks */

/* Adds text from a sink, which may be long and invalid UTF-8; the stored text must be neither. */
static void add_text(struct buf *b, const char *name, const char *text)
{
    char kept[TEXT_KEPT_MAX];
    if (!text)
        return;
    buf_addf(b, ",\"%s\":", name);
    json_quote(b, str_of(text_kept(text, kept)));
}

/* Adds what the outcomes of a set have in common. */
static void add_how(struct buf *b, const struct outcome *o)
{
    static const char *const kinds[] = {"delivered", "retry", "dead", "behind", "delay"};
    buf_addf(b, "{\"kind\":\"%s\",\"attempts\":%d", kinds[o->kind], o->attempts);
    if (o->proven)
        buf_adds(b, ",\"proven\":true");
    add_text(b, "error", o->error);
}

/* ---- outcomes, as sets or one by one ---- */

/* A set of outcomes that differ only in their events and delays. */
struct set {
    const struct outcome *first;
    size_t n;
};

struct sets {
    struct set set[SETS_MAX];
    size_t n;
};

static bool alike(const struct outcome *a, const struct outcome *b)
{
    if (a->kind != b->kind || a->attempts != b->attempts || a->proven != b->proven)
        return false;
    if (!a->error || !b->error)
        return a->error == b->error;
    return strcmp(a->error, b->error) == 0;
}

/* Groups the outcomes into sets. False: they have to be sent one by one. */
static bool sort_out(const struct settlement *s, struct sets *all)
{
    all->n = 0;
    if (s->b->parked || s->order == ORDER_GLOBAL || s->n == 0)
        return false;
    for (size_t i = 0; i < s->n; i++) {
        const struct outcome *o = &s->out[i];
        bool waits = o->kind == OUTCOME_RETRY || o->kind == OUTCOME_BEHIND;
        if (!waits)
            return false;
        size_t k = 0;
        while (k < all->n && !alike(all->set[k].first, o))
            k++;
        if (k == SETS_MAX)
            return false;
        if (k == all->n)
            all->set[all->n++] = (struct set){.first = o};
        all->set[k].n++;
    }
    return true;
}

enum set_column { SET_SEQS, SET_KEYS, SET_DELAYS, SET_COLUMNS };

/* Adds a PostgreSQL array with a number from each outcome of a set. */
static void add_numbers(struct buf *b, const struct settlement *s, const struct set *set,
                        enum set_column column)
{
    static const char *const names[] = {"seqs", "keys", "delays"};
    char before = '{';
    size_t left = set->n;
    buf_addf(b, ",\"%s\":\"", names[column]);
    for (const struct outcome *o = set->first; left > 0; o++) {
        int64_t n = 0;
        if (!alike(set->first, o))
            continue;
        if (column == SET_SEQS)
            n = o->ev->seq;
        else if (column == SET_DELAYS)
            n = o->delay_ms;
        else if (s->order == ORDER_KEY)
            n = pg_key(o->ev->aggregate_type, o->ev->aggregate_id);
        buf_addc(b, before);
        buf_addi64(b, n);
        before = ',';
        left--;
    }
    buf_adds(b, "}\"");
}

static void add_sets(struct buf *b, const struct settlement *s, const struct sets *all)
{
    for (size_t i = 0; i < all->n; i++) {
        const struct set *set = &all->set[i];
        if (i > 0)
            buf_addc(b, ',');
        add_how(b, set->first);
        buf_addf(b, ",\"sample\":%lld", (long long)pg_key_sample());
        for (int column = 0; column < SET_COLUMNS; column++)
            add_numbers(b, s, set, (enum set_column)column);
        buf_addc(b, '}');
    }
}

static void add_outcomes(struct buf *b, const struct settlement *s)
{
    struct sets all;
    if (sort_out(s, &all)) {
        add_sets(b, s, &all);
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct outcome *o = &s->out[i];
        if (i > 0)
            buf_addc(b, ',');
        add_how(b, o);
        buf_addf(b, ",\"seq\":%lld,\"delay_ms\":%lld", (long long)o->ev->seq,
                 (long long)o->delay_ms);
        if (o->kind == OUTCOME_DELIVERED) {
            add_text(b, "receipt", o->receipt);
            add_text(b, "id", o->ev->id.p);
        }
        buf_addc(b, '}');
    }
}

/* ---- fields of a row ---- */

static void add_int(struct buf *b, int64_t n)
{
    buf_addc(b, ',');
    buf_addi64(b, n);
}

static void add_flag(struct buf *b, bool on)
{
    buf_adds(b, on ? ",t" : ",f");
}

/* Adds a string. It is quoted twice: as a field of the row, and with the row as an element of the
 * array. NULL is an empty field. */
static void add_quoted(struct buf *b, const char *text)
{
    buf_addc(b, ',');
    if (!text)
        return;
    buf_adds(b, "\\\"");
    while (*text) {
        size_t plain = strcspn(text, "\"\\");
        buf_add(b, text, plain);
        text += plain;
        if (*text == '"')
            buf_adds(b, "\\\\\\\"");
        else if (*text)
            buf_adds(b, "\\\\\\\\");
        else
            break;
        text++;
    }
    buf_adds(b, "\\\"");
}

/* ---- the request ---- */

/* Counts the events that were not released. The server cannot count them: it does not know which
 * ones the predicate excludes. */
static int64_t count_tried(const struct settlement *s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->b->n; i++) {
        bool given_back = s->release_from && s->b->ev[i].seq >= s->release_from;
        if (!given_back)
            n++;
    }
    return n;
}

/* Adds a list of JSON objects as a field, and empties it. */
static void add_objects(struct buf *b, struct buf *objects)
{
    buf_addc(objects, ']');
    const char *text = buf_cstr(objects);
    if (text)
        add_quoted(b, text);
    else
        b->failed = true;
    buf_clear(objects);
}

/* Adds the attributes of the claim that is settled. */
static void add_settlement(struct buf *b, const struct pg_request *q)
{
    const struct settlement *s = q->s;
    struct buf objects;
    buf_init(&objects, JSON_BYTES);
    add_int(b, s ? s->b->epoch : 0);
    add_int(b, s ? count_tried(s) : 0);
    buf_addc(&objects, '[');
    if (q->passed_over)
        buf_addf(&objects, "{\"seq\":%lld,\"kind\":\"skip\"}", (long long)q->passed_over);
    else if (s)
        add_outcomes(&objects, s);
    add_objects(b, &objects);
    add_int(b, s ? s->release_from : 0);

    for (size_t i = 0; s && i < s->n_marks; i++) {
        const struct hwm *m = &s->marks[i];
        buf_adds(&objects, i > 0 ? ",{\"stream\":" : "[{\"stream\":");
        json_quote(&objects, m->stream);
        buf_addf(&objects, ",\"hi\":%lld,\"lo\":%lld}", (long long)m->hi, (long long)m->lo);
    }
    if (s && s->n_marks > 0)
        add_objects(b, &objects);
    else
        add_quoted(b, NULL);
    buf_release(&objects);
}

/* Adds the epochs of the claims that the worker holds. */
static void add_known(struct buf *b, const struct claim_request *req)
{
    if (req->one_shot) {
        add_quoted(b, NULL);
        return;
    }
    buf_adds(b, ",\\\"{");
    for (size_t i = 0; i < req->n_known; i++) {
        if (i > 0)
            buf_addc(b, ',');
        buf_addi64(b, req->known[i]);
    }
    buf_adds(b, "}\\\"");
}

void pg_request_add(struct buf *list, struct pg_store *st, size_t place, const struct pg_request *q)
{
    /* A settlement alone requests nothing: max_events 0, and max_attempts 0 takes over nothing. */
    static const struct claim_request nothing;
    const struct claim_request *req = q->req ? q->req : &nothing;
    buf_adds(list, list->n == 0 ? "{\"(" : ",\"(");
    buf_addi64(list, (int64_t)place);
    add_quoted(list, q->req ? req->consumer : q->s->consumer);
    add_quoted(list, q->req ? req->owner : q->s->owner);
    add_settlement(list, q);

    /* -1 means that this process has no other worker to claim the rest, so the claim covers all
     * lanes of a new consumer. */
    bool takes_all = req->sole && req->n_known == 0;
    add_int(list, (int64_t)q->max_events);
    add_int(list, req->lease_ms);
    add_int(list, req->max_attempts);
    add_int(list, req->suspect);
    add_flag(list, req->parked_first);
    add_flag(list, pg_clock_repair_due(st, req));
    add_int(list, takes_all ? -1 : req->lane_hint);
    add_known(list, req);
    add_quoted(list, q->req ? store_order_names[req->order] : NULL);
    add_int(list, req->lanes);
    add_quoted(list, req->events ? req->events : "");
    add_quoted(list, req->where ? req->where : "");

    const struct pg_window *w = q->ahead;
    add_int(list, w ? st->ahead.lane : -1);
    add_quoted(list, w ? w->target : NULL);
    add_int(list, w ? w->from : 0);
    add_int(list, w ? w->to : 0);
    add_int(list, (int64_t)q->n_ahead);
    add_int(list, w ? st->ahead.members : 0);
    add_int(list, pg_key_sample());
    buf_adds(list, ")\"");
}
