/* claim_rows_race.c: many claimers, each with its own connection, on one table. */
#include "claim_rows.h"

#include <pthread.h>

#include "../lib/rounds.h"

#define CLAIMERS 16

struct race {
    int rows, batch;
    pthread_barrier_t *line; /* the common start */
};

struct claimer {
    struct rig rig;
    pthread_t thread;
    const struct race *race;
    char name[16];
    int *ids; /* what it got */
    int n;
    outbox_error err; /* why it stopped, if it failed */
};

/* claim_batch returns the number of rows it claimed; -1 on failure. */
static int claim_batch(struct claimer *me)
{
    outbox_criterion criteria[] = {{"owner", OUTBOX_IS_NULL, outbox_value_null(), NULL, 0, 0}};
    outbox_claim_field fields[] = {{"owner", outbox_value_text(me->name)}};
    outbox_claim_order order[] = {{"id", 0}};
    outbox_row_claim c = OUTBOX_ROW_CLAIM_INIT;
    outbox_rows *rows;
    c.table = "race";
    c.key = "id";
    c.limit = (size_t)me->race->batch;
    WITH(c, criteria, criteria);
    WITH(c, fields, fields);
    WITH(c, order_by, order);
    if (rig_claim(&me->rig, c, &rows, &me->err) != 0)
        return -1;
    int n = (int)outbox_rows_count(rows);
    for (int i = 0; i < n && me->n < me->race->rows; i++)
        me->ids[me->n++] = (int)outbox_rows_int(rows, (size_t)i, 0);
    outbox_rows_free(rows);
    return n;
}

static void *claim_all(void *arg)
{
    struct claimer *me = arg;
    if (me->race->line)
        pthread_barrier_wait(me->race->line);
    int n = claim_batch(me);
    if (me->race->line)
        /* so that no claimer claims every row before the others have started */
        pthread_barrier_wait(me->race->line);
    while (n > 0)
        n = claim_batch(me);
    return NULL;
}

static void fill(const struct rig *g, const struct race *race)
{
    char sql[256];
    rig_exec(g, "CREATE TABLE race (id int PRIMARY KEY, owner text)");
    if (!g->my)
        rig_exec(g, "CREATE INDEX race_open ON race (id) WHERE owner IS NULL");
    snprintf(sql, sizeof sql,
             g->my ? "INSERT INTO race SELECT seq, NULL FROM seq_1_to_%d"
                   : "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "
                     "%d) INSERT INTO race SELECT i, NULL FROM n",
             race->rows);
    rig_exec(g, sql);
}

/* look_again waits only briefly for SQLite's lock, so every claimer gets a turn. SQLite's own
 * backoff grows, so the first claimer would get all rows. */
static int look_again(void *ctx, int times)
{
    (void)ctx;
    (void)times;
    usleep(50);
    return 1;
}

static void start(struct claimer *c, int number, const struct rig *g, const struct race *race)
{
    *c = (struct claimer){
        .rig = rig_again(g), .race = race, .ids = calloc((size_t)race->rows, sizeof(int))};
    snprintf(c->name, sizeof c->name, "claimer %d", number);
    if (!c->rig.db)
        return;
    rig_exec(&c->rig, "PRAGMA synchronous = OFF"); /* the race is what matters, not the disk */
    sqlite3_busy_handler(c->rig.db, look_again, NULL);
}

/* finish adds a claimer's rows to seen[]. */
static void finish(struct claimer *c, unsigned char *seen)
{
    if (*c->err.text)
        fail_msg("%s: %s", c->name, c->err.text);
    for (int i = 0; i < c->n; i++)
        assert_int_equal(++seen[c->ids[i]], 1);
    free(c->ids);
    rig_close(&c->rig);
}

/* race_of: the portable path has a transaction per row and claimer, and MariaDB has no index of the
 * open rows alone, so each claim passes all rows already taken. With as many rows as elsewhere both
 * would take minutes. */
static struct race race_of(const struct rig *g)
{
    if (g->portable)
        return (struct race){.rows = 1000, .batch = 20};
    if (g->my)
        return (struct race){.rows = (int)rounds_count(10000, 100000), .batch = 100};
    return (struct race){.rows = (int)rounds_count(40000, 100000), .batch = 100};
}

void racing_claimers_get_each_row_exactly_once(void **state)
{
    struct rig *g = rig_of(state);
    struct race race = race_of(g);
    struct claimer c[CLAIMERS + 1];
    unsigned char *seen = calloc((size_t)race.rows + 1, 1);
    pthread_barrier_t line;
    int busy = 0;
    pthread_barrier_init(&line, NULL, CLAIMERS);
    race.line = &line;
    fill(g, &race);
    for (int i = 0; i <= CLAIMERS; i++)
        start(&c[i], i, g, &race);
    for (int i = 0; i < CLAIMERS; i++)
        pthread_create(&c[i].thread, NULL, claim_all, &c[i]);
    for (int i = 0; i < CLAIMERS; i++)
        pthread_join(c[i].thread, NULL);
    for (int i = 0; i < CLAIMERS; i++) {
        busy += c[i].n > 0;
        finish(&c[i], seen);
    }
    race.line = NULL;
    claim_all(&c[CLAIMERS]); /* rows that every claimer skipped */
    finish(&c[CLAIMERS], seen);
    for (int i = 1; i <= race.rows; i++)
        assert_int_equal(seen[i], 1);
    assert_in_range(busy, 2, CLAIMERS);
    pthread_barrier_destroy(&line);
    free(seen);
}
