/* pg_random.c: writers that commit in any order, against workers that use the store in every way
 * (reading ahead, too little memory, settling and claiming in one call, failures, crashes,
 * releasing), checked against a model. A failure names its seed; OUTBOX_SEED=N runs that one,
 * OUTBOX_SOAK=1 many. */
#include "base/rng.h"
#include "pg.h"
#include "pg_tests.h"
#include "store_impl.h"

#define SOAK_SECONDS 300
#define WRITERS 7
#define WORKERS 2
#define LIVE 2
#define KEYS 31
#define BULK 2500 /* events of one statement, so that the store reads ahead */
#define EVENTS_MAX 200000

/* The model of an event, by its seq: when it was written and committed (0: never), in steps, and
 * when it was first delivered. */
struct known {
    int key, written, committed, first;
    int times;
    /* Excused: it was in a claim whose worker crashed, so it may be repeated. */
    bool wanted, excused;
};

struct writer {
    PGconn *db;
    bool open;
    size_t n, mark; /* events of this transaction; those before the savepoint */
    bool saved;
    int64_t seq[8 * BULK];
};

struct worker {
    struct store *st;
    char name[8];
    struct arena a[LIVE];
    struct batch b[LIVE];
    size_t n; /* live batches, the oldest first */
    /* by batch: keys that an earlier batch has failed since */
    bool failing[LIVE][KEYS];
};

struct world {
    struct rng dice;
    uint64_t seed;
    enum order order;
    int lanes;
    const char *events;
    int now, delivered;
    int simple; /* turns made by turns() */
    struct known known[EVENTS_MAX];
    struct writer writer[WRITERS];
    struct worker worker[WORKERS];
};

static size_t roll(struct world *w, size_t n)
{
    return rng_below(&w->dice, n);
}

/* ---- writers ---- */

/* note adds an event to the model. */
static void note(struct world *w, struct writer *x, int64_t seq, int key, bool other)
{
    assert_true(seq < EVENTS_MAX);
    w->known[seq] = (struct known){.key = key, .written = w->now, .wanted = !other || !*w->events};
    x->seq[x->n++] = seq;
}

static void write_many(struct world *w, struct writer *x)
{
    int64_t first = pg_number(
        x->db,
        "WITH i AS (INSERT INTO event (type, aggregate_type, aggregate_id) SELECT 't.e', 'a', (i "
        "%% "
        "%d)::text FROM generate_series(0, %d) i RETURNING seq) SELECT min(seq) FROM i",
        KEYS, BULK - 1);
    for (int i = 0; i < BULK; i++)
        note(w, x, first + i, i % KEYS, false);
}

static void write_some(struct world *w, struct writer *x)
{
    if (roll(w, 25) == 0 && x->n < 6 * BULK) {
        write_many(w, x);
        return;
    }
    static const int counts[] = {1, 1, 2, 10, 60};
    int n = counts[roll(w, 5)];
    for (int i = 0; i < n && x->n < 7 * BULK; i++) {
        int key = (int)roll(w, KEYS);
        bool other = roll(w, 3) == 0;
        int64_t seq = pg_number(
            x->db,
            "INSERT INTO event (type, aggregate_type, aggregate_id, payload) VALUES ('%s', 'a', "
            "'%d', to_json(repeat('x', %d))) RETURNING seq",
            other ? "u.e" : "t.e", key, (int)roll(w, 800));
        note(w, x, seq, key, other);
    }
}

static void end_writing(struct world *w, struct writer *x, bool commit)
{
    pg_do(x->db, commit ? "COMMIT" : "ROLLBACK");
    for (size_t i = 0; commit && i < x->n; i++)
        w->known[x->seq[i]].committed = w->now;
    x->open = false;
}

static void write_step(struct world *w)
{
    struct writer *x = &w->writer[roll(w, WRITERS)];
    size_t what = roll(w, 20);
    if (!x->open) {
        pg_do(x->db, "BEGIN");
        x->open = true;
        x->n = 0;
        x->saved = false;
        if (what < 5)
            pg_do(x->db, "SELECT pg_current_xact_id()");
    } else if (what < 13) {
        write_some(w, x);
    } else if (what < 15) {
        pg_do(x->db, "SAVEPOINT s");
        x->mark = x->n;
        x->saved = true;
    } else if (what < 16 && x->saved) {
        pg_do(x->db, "ROLLBACK TO s");
        x->n = x->mark;
    } else {
        end_writing(w, x, what < 19);
    }
}

/* ---- workers ---- */

static void deliver(struct world *w, const struct event *ev)
{
    struct known *k = &w->known[ev->seq];
    if (!k->committed)
        fail_msg("seed %llu: event %lld was delivered but never committed",
                 (unsigned long long)w->seed, (long long)ev->seq);
    if (!k->wanted)
        fail_msg("seed %llu: event %lld does not match the filter", (unsigned long long)w->seed,
                 (long long)ev->seq);
    w->delivered++;
    if (k->times++ == 0)
        k->first = w->delivered;
    else if (!k->excused)
        fail_msg("seed %llu: event %lld was delivered twice", (unsigned long long)w->seed,
                 (long long)ev->seq);
}

static void fails(struct world *w, struct worker *x, int key)
{
    for (size_t i = 0; w->order == ORDER_KEY && i < x->n; i++)
        x->failing[i][key] = true;
}

/* outcomes_of delivers a batch up to release_from. Events that are held, that fail, or that are
 * behind a failed one get an outcome. */
static size_t outcomes_of(struct world *w, struct worker *x, int64_t release_from,
                          struct outcome *out)
{
    size_t n = 0;
    struct batch *b = &x->b[0];
    for (size_t i = 0; i < b->n; i++) {
        struct event *ev = &b->ev[i];
        int key = w->known[ev->seq].key;
        if (release_from && ev->seq >= release_from) {
            fails(w, x, key);
        } else if (ev->behind || x->failing[0][key]) {
            out[n++] = (struct outcome){.ev = ev, .kind = OUTCOME_BEHIND, .attempts = ev->attempts};
            fails(w, x, key);
        } else if (roll(w, 200) == 0) {
            out[n++] = (struct outcome){
                .ev = ev, .kind = OUTCOME_RETRY, .attempts = 1, .delay_ms = 1, .error = "boom"};
            fails(w, x, key);
        } else {
            deliver(w, ev);
        }
    }
    return n;
}

static struct claim_request request_of(struct world *w, struct worker *x, int64_t known[LIVE])
{
    static const size_t sizes[] = {1, 20, 50, 100, 100, 300};
    struct claim_request req = request_as("c", x->name, w->order, w->lanes);
    for (size_t i = 0; i < x->n; i++)
        known[i] = x->b[i].epoch;
    req.events = w->events;
    req.known = known;
    req.n_known = x->n;
    req.lane_hint = (int)roll(w, (size_t)w->lanes);
    req.max_events = x->n < LIVE ? sizes[roll(w, 6)] : 0;
    req.max_bytes = roll(w, 4) ? 1 << 20 : 1000;
    req.parked_first = roll(w, 2);
    req.max_attempts = 1000;
    req.suspect = x->n == 0 ? SUSPECT_TAKE : SUSPECT_SKIP;
    return req;
}

static void drop_oldest(struct worker *x)
{
    struct arena a = x->a[0];
    arena_reset(&a);
    for (size_t i = 1; i < x->n; i++) {
        x->a[i - 1] = x->a[i];
        x->b[i - 1] = x->b[i];
        memcpy(x->failing[i - 1], x->failing[i], sizeof *x->failing);
    }
    x->a[--x->n] = a;
}

/* in_company takes a turn like a relay with many consumers. Returns whether it was simple. */
static bool in_company(struct worker *x, const struct settlement *s, struct claim_request *req,
                       struct batch *b, struct claim_hint *hint)
{
    struct error err;
    struct batched_turn t = {.s = s, .req = req, .a = &x->a[x->n]};
    req->no_listen = true;
    must(x->st->ops->turn_many(x->st, &t, 1, &err), &err);
    if (!t.made)
        return false;
    *b = t.batch;
    *hint = t.hint;
    return true;
}

/* turn settles the oldest batch or none, and claims another one in the same call or not. */
static size_t turn(struct world *w, struct worker *x, bool settling, bool claiming)
{
    static struct outcome out[1000];
    struct error err;
    struct claim_hint hint = {0};
    struct batch b = {0};
    struct settlement s = {
        .consumer = "c", .owner = x->name, .order = w->order, .b = &x->b[0], .out = out};
    int64_t known[LIVE];
    bool lost = false;
    if (x->n == 0)
        settling = false;
    struct claim_request req = request_of(w, x, known);
    if (!claiming)
        req.max_events = 0;
    if (settling) {
        if (roll(w, 8) == 0)
            s.release_from = s.b->ev[roll(w, s.b->n)].seq;
        s.n = outcomes_of(w, x, s.release_from, out);
    }
    const struct settlement *given = settling ? &s : NULL;
    bool simple = false;
    if (req.max_events > 0 && roll(w, 2))
        simple = in_company(x, given, &req, &b, &hint);
    w->simple += simple;
    if (!simple)
        must(x->st->ops->turn(x->st, given, &lost, &req, &x->a[x->n], &b, &hint, &err), &err);
    assert_false(lost);
    if (b.n) {
        memset(x->failing[x->n], 0, sizeof *x->failing);
        x->b[x->n++] = b;
    }
    if (settling)
        drop_oldest(x);
    return b.n + settling + hint.skipped;
}

/* crash makes every lease expire. Events in flight stay unsettled, and some may have been
 * delivered. */
static void crash(struct world *w)
{
    for (size_t i = 0; i < WORKERS; i++) {
        struct worker *x = &w->worker[i];
        for (; x->n; drop_oldest(x))
            for (size_t j = 0; j < x->b[0].n; j++)
                w->known[x->b[0].ev[j].seq].excused = true;
    }
    pass(LEASE + 1);
}

/* ---- the whole ---- */

static void check(struct world *w)
{
    static struct {
        int first, committed, seq;
    } later[KEYS];
    int at_most = 0;
    for (int i = 0; i < KEYS; i++)
        later[i].committed = 0;
    for (int seq = 1; seq < EVENTS_MAX; seq++) {
        const struct known *k = &w->known[seq];
        if (!k->committed || !k->wanted)
            continue;
        if (!k->times)
            fail_msg("seed %llu: event %d was lost", (unsigned long long)w->seed, seq);
        if (k->first > at_most)
            at_most = k->first;
    }
    int *by_place = calloc((size_t)at_most + 1, sizeof *by_place);
    for (int seq = 1; seq < EVENTS_MAX; seq++)
        if (w->known[seq].times)
            by_place[w->known[seq].first] = seq;
    /* Backwards: for each key, the event committed first among the later ones. */
    for (int place = at_most; place > 0 && w->order == ORDER_KEY; place--) {
        const struct known *k = &w->known[by_place[place]];
        if (!by_place[place])
            continue;
        if (later[k->key].committed && later[k->key].committed < k->written)
            fail_msg("seed %llu: event %d overtook event %d", (unsigned long long)w->seed,
                     by_place[place], later[k->key].seq);
        if (!later[k->key].committed || k->committed < later[k->key].committed) {
            later[k->key].committed = k->committed;
            later[k->key].seq = by_place[place];
        }
    }
    free(by_place);
}

static void set_up(struct world *w, struct store *st)
{
    struct error err;
    struct consumer_spec c = spec_of("c");
    c.events = w->events;
    c.order = w->order;
    c.lanes = w->lanes;
    must(st->ops->consumer_put(st, &c, NULL, &err), &err);
    for (size_t i = 0; i < WRITERS; i++)
        w->writer[i].db = pg_connect();
    for (size_t i = 0; i < WORKERS; i++) {
        snprintf(w->worker[i].name, sizeof w->worker[i].name, "w%zu", i);
        must(st->ops->dup(st, &w->worker[i].st, &err), &err);
        for (size_t j = 0; j < LIVE; j++)
            arena_init(&w->worker[i].a[j], 0);
    }
}

static void tear_down(struct world *w)
{
    for (size_t i = 0; i < WRITERS; i++)
        PQfinish(w->writer[i].db);
    for (size_t i = 0; i < WORKERS; i++) {
        store_close(w->worker[i].st);
        for (size_t j = 0; j < LIVE; j++)
            arena_release(&w->worker[i].a[j]);
    }
    free(w);
}

static void play(struct store_rig *g, uint64_t seed, int steps)
{
    static const int lanes[] = {1, 1, 4};
    struct world *w = calloc(1, sizeof *w);
    rng_seed(&w->dice, seed);
    w->seed = seed;
    w->order = seed % 3 == 0 ? ORDER_NONE : ORDER_KEY;
    w->lanes = lanes[roll(w, 3)];
    w->events = roll(w, 2) ? "" : "t.*";
    set_up(w, g->st);
    for (w->now = 1; w->now <= steps; w->now++) {
        size_t what = roll(w, 200);
        struct worker *x = &w->worker[roll(w, WORKERS)];
        if (what < 90)
            write_step(w);
        else if (what < 198)
            turn(w, x, what % 2, what % 3);
        else
            crash(w);
        if (what % 20 == 0)
            pass(2);
    }
    for (size_t i = 0; i < WRITERS; i++)
        if (w->writer[i].open)
            end_writing(w, &w->writer[i], roll(w, 3));
    for (int idle = 0; idle < 10; pass(2)) {
        size_t found = 0;
        for (size_t i = 0; i < WORKERS; i++)
            found += turn(w, &w->worker[i], true, true) + w->worker[i].n;
        idle = found ? 0 : idle + 1;
    }
    check(w);
    if (w->lanes == 1)
        assert_true(w->simple > 0);
    tear_down(w);
}

static void random_commits_and_claims_keep_every_event_in_order(void **state)
{
    const char *one = getenv("OUTBOX_SEED"), *soaking = getenv("OUTBOX_SOAK");
    bool soak = soaking && *soaking == '1';
    uint64_t first = one ? strtoull(one, NULL, 10) : 1,
             n = one    ? 1
                 : soak ? UINT64_MAX
                        : 3,
             done = 0;
    int64_t end = clock_mono(&clock_system) + SOAK_SECONDS * 1000 * MS_NS;
    for (; done < n && (!soak || clock_mono(&clock_system) < end); done++) {
        if (done && store_rig_teardown(state) + store_rig_setup(state) != 0)
            fail_msg("no store");
        play(*state, first + done, soak ? 1000 : 300);
    }
    if (soak)
        print_message("# %llu seeds\n", (unsigned long long)done);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(random_commits_and_claims_keep_every_event_in_order),
};
const struct suite_part pg_random_tests = SUITE_PART(tests);
