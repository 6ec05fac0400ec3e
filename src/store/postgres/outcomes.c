/* outcomes.c: the arguments of a turn as JSON: outcomes, marks and known claims. For outcomes see
 * sql/postgres/functions/settle.sql. Fresh events that failed in the same way, or wait behind
 * those, are sent as a set with their keys: then the server can park them without a lookup
 * (sql/postgres/internal/settle.sql). */
#include "base/json.h"
#include "base/text.h"
#include "store/postgres/postgres.h"

#define SETS_MAX 8

/* Adds a text from a sink. It may be invalid UTF-8, and long; the stored text must be neither. */
static void add_text(struct buf *b, const char *name, const char *text)
{
    char kept[TEXT_KEPT_MAX];
    if (!text)
        return;
    buf_addf(b, ",\"%s\":", name);
    json_quote(b, str_of(text_kept(text, kept)));
}

/* ---- one by one ---- */

/* Adds the common part of the outcomes of a set. */
static void add_how(struct buf *b, const struct outcome *o)
{
    static const char *const kinds[] = {"delivered", "retry", "dead", "behind", "delay"};
    buf_addf(b, "{\"kind\":\"%s\",\"attempts\":%d", kinds[o->kind], o->attempts);
    if (o->proven)
        buf_adds(b, ",\"proven\":true");
    add_text(b, "error", o->error);
}

static void add_outcome(struct buf *b, const struct outcome *o)
{
    add_how(b, o);
    buf_addf(b, ",\"seq\":%lld,\"delay_ms\":%lld", (long long)o->ev->seq, (long long)o->delay_ms);
    if (o->kind == OUTCOME_DELIVERED) {
        add_text(b, "receipt", o->receipt);
        add_text(b, "id", o->ev->id.p);
    }
    buf_addc(b, '}');
}

/* ---- as sets ---- */

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

/* Finds the set of an outcome; NULL: none. */
static struct set *set_of(struct sets *all, const struct outcome *o)
{
    for (size_t i = 0; i < all->n; i++) {
        if (alike(all->set[i].first, o))
            return &all->set[i];
    }
    return NULL;
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
        struct set *set = set_of(all, o);
        if (!set && all->n == SETS_MAX)
            return false;
        if (!set) {
            set = &all->set[all->n++];
            *set = (struct set){.first = o};
        }
        set->n++;
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

/* ---- the whole ---- */

void pg_add_outcomes(struct buf *b, const struct settlement *s)
{
    struct sets all;
    if (sort_out(s, &all)) {
        add_sets(b, s, &all);
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        if (i > 0)
            buf_addc(b, ',');
        add_outcome(b, &s->out[i]);
    }
}

void pg_add_marks(struct buf *b, const struct settlement *s)
{
    buf_addc(b, '[');
    for (size_t i = 0; s && i < s->n_marks; i++) {
        const struct hwm *m = &s->marks[i];
        if (i > 0)
            buf_addc(b, ',');
        buf_adds(b, "{\"stream\":");
        json_quote(b, m->stream);
        buf_adds(b, ",\"hi\":");
        buf_addi64(b, m->hi);
        buf_adds(b, ",\"lo\":");
        buf_addi64(b, m->lo);
        buf_addc(b, '}');
    }
    buf_addc(b, ']');
}

void pg_add_known(struct buf *b, const struct claim_request *req, const char brackets[2])
{
    buf_addc(b, brackets[0]);
    for (size_t i = 0; i < req->n_known; i++) {
        if (i > 0)
            buf_addc(b, ',');
        buf_addi64(b, req->known[i]);
    }
    buf_addc(b, brackets[1]);
}
