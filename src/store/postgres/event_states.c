#include "store/postgres/event_states.h"

#include "base/buf.h"

#define SEQ_MAX 24 /* bytes of a number in a list, at most */

void pg_viewer_release(struct viewer *v)
{
    for (size_t i = 0; v->filters && i < v->n; i++)
        filter_free(v->filters[i]);
    arena_release(&v->a);
}

/* Prepares the viewer for n consumers, which are in v->list. */
static int add_consumers(struct viewer *v, size_t n, struct error *err)
{
    v->filters = arena_zalloc(&v->a, n + 1, sizeof *v->filters);
    v->d = arena_zalloc(&v->a, n + 1, sizeof *v->d);
    if (!v->filters || !v->d)
        return err_nomem(err);
    for (; v->n < n; v->n++) {
        const struct consumer_spec *c = &v->list[v->n];
        if (filter_new(c->events, c->where, &v->filters[v->n], err) != 0)
            return -1;
    }
    return 0;
}

int pg_viewer_init(struct viewer *v, struct pg_store *st, const char *consumer, struct error *err)
{
    size_t n = 0;
    *v = (struct viewer){.st = st, .consumer = consumer};
    arena_init(&v->a, 0);
    int result = pg_consumer_all_specs(st, consumer, &v->a, &v->list, &n, err);
    if (result == 0)
        result = add_consumers(v, n, err);
    if (result != 0)
        pg_viewer_release(v);
    return result;
}

/* Reads a state's name. "unknown": the predicate has to be evaluated; if it matches, the event was
 * delivered. */
static enum delivery_state state_of(const char *s)
{
    for (int i = 0; i < STATE_COUNT; i++)
        if (strcmp(s, delivery_state_names[i]) == 0)
            return (enum delivery_state)i;
    return STATE_DELIVERED;
}

/* Whether a predicate, which may be a former one of the consumer, excludes an event. */
static int excluded(const struct viewer *v, size_t i, const char *predicate, struct str payload,
                    bool *ret, struct error *err)
{
    struct filter *f = NULL;
    *ret = false;
    if (!predicate || !*predicate)
        return 0;
    if (strcmp(predicate, v->list[i].where) == 0) {
        *ret = !filter_payload(v->filters[i], payload);
        return 0;
    }
    if (filter_new(NULL, predicate, &f, err) != 0)
        return -1;
    *ret = !filter_payload(f, payload);
    filter_free(f);
    return 0;
}

/* Finds a consumer by its name; v->n: it is not in the listing. */
static size_t consumer_index(const struct viewer *v, const char *name)
{
    size_t i = 0;
    while (i < v->n && strcmp(v->list[i].name, name) != 0)
        i++;
    return i;
}

/* clang-format off */
static const char states_sql[] =
    "SELECT s.seq, s.consumer, s.state, s.attempts, "
           "floor(extract(epoch FROM s.due_at) * 1000)::bigint, "
           "s.error, s.predicate, "
           "floor(extract(epoch FROM s.received_at) * 1000)::bigint, "
           "s.sink_id "
    "FROM @schema@._states($1::bigint[], $2) s";
/* clang-format on */

int pg_viewer_ask(struct viewer *v, const struct event *page, size_t n, PGresult **ret,
                  struct error *err)
{
    struct buf seqs;
    *ret = NULL;
    bool nothing = v->n == 0 || n == 0;
    if (nothing)
        return 0;
    buf_init(&seqs, n * SEQ_MAX);
    for (size_t i = 0; i < n; i++)
        buf_addf(&seqs, "%c%lld", i ? ',' : '{', (long long)page[i].seq);
    buf_addc(&seqs, '}');
    const char *text = buf_cstr(&seqs);
    if (text)
        *ret = pg_query(v->st, err, states_sql, "ss", text, v->consumer);
    else
        err_nomem(err);
    buf_release(&seqs);
    return *ret ? 0 : -1;
}

/* Reads one row of states_sql. */
static int read_state(struct viewer *v, const PGresult *r, int row, const struct event *ev,
                      struct arena *a, struct error *err)
{
    size_t i = consumer_index(v, PQgetvalue(r, row, 1));
    if (i == v->n)
        return 0; /* registered just now */
    struct delivery_info *d = &v->d[i];
    bool ok = true;
    d->state = state_of(PQgetvalue(r, row, 2));
    d->attempts = (int)pg_int(r, row, 3);
    d->due_at = pg_int(r, row, 4);
    d->error = pg_copy(r, row, 5, a, &ok);
    d->delivered_at = pg_int(r, row, 7);
    d->receipt = pg_copy(r, row, 8, a, &ok);
    if (!ok)
        return err_nomem(err);

    bool left_out;
    if (excluded(v, i, pg_str(r, row, 6), ev->payload, &left_out, err) != 0)
        return -1;
    if (left_out)
        d->state = STATE_SKIPPED;
    return 0;
}

/* Finds the first row of an event in the answer to states_sql, which is in order. */
static int first_row(const PGresult *states, int64_t seq)
{
    int low = 0, high = PQntuples(states);
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (pg_int(states, middle, 0) < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int pg_viewer_tell(struct viewer *v, const PGresult *states, const struct event *ev,
                   struct arena *a, struct error *err)
{
    for (size_t i = 0; i < v->n; i++)
        v->d[i] = (struct delivery_info){.consumer = v->list[i].name, .state = STATE_SKIPPED};
    if (!states)
        return 0;
    for (int row = first_row(states, ev->seq); row < PQntuples(states); row++) {
        if (pg_int(states, row, 0) != ev->seq)
            break;
        if (read_state(v, states, row, ev, a, err) != 0)
            return -1;
    }
    return 0;
}

bool pg_viewer_shows(const struct viewer *v, const struct event_query *q)
{
    bool any_state = !q->state && !q->unprocessed;
    if (any_state)
        return true;
    if (v->n == 0)
        return q->unprocessed || q->state == STATE_PENDING + 1;
    for (size_t i = 0; i < v->n; i++)
        if (store_in_state(q, &v->d[i], v->now))
            return true;
    return false;
}
