#include "handlers_rig.h"

#include <pthread.h>
#include <time.h>

outbox_error err;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[16384];

static void keep_log(void *ctx, int level, const char *consumer, const char *text)
{
    (void)ctx, (void)level, (void)consumer;
    pthread_mutex_lock(&log_lock);
    size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", text);
    pthread_mutex_unlock(&log_lock);
}

bool logged(const char *part)
{
    pthread_mutex_lock(&log_lock);
    bool there = strstr(log_text, part) != NULL;
    pthread_mutex_unlock(&log_lock);
    return there;
}

outbox_options logging(void)
{
    outbox_options o = OUTBOX_OPTIONS_INIT;
    o.log = keep_log;
    return o;
}

int fresh(void **state)
{
    outbox_options o = logging();
    log_text[0] = '\0';
    *state = db_fresh(&o);
    return 0;
}

int done(void **state)
{
    outbox_close(*state);
    db_clean();
    return 0;
}

void emit_one(outbox *ob, const char *type, const char *key, const char *payload)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.aggregate_type = "t";
    m.aggregate_id = key;
    m.payload = payload;
    OK(outbox_emit(ob, &m, NULL, &err));
}

void emit(outbox *ob, int n)
{
    OK(outbox_begin(ob, &err));
    for (int i = 0; i < n; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        emit_one(ob, "e", text, text);
    }
    OK(outbox_commit(ob, &err));
}

void nap(int64_t ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&ts, NULL);
}

int number_of(const outbox_event *ev)
{
    return atoi(outbox_event_payload(ev, NULL));
}

outbox_consumer *consumer(outbox *ob, const char *name)
{
    outbox_consumer *c;
    OK(outbox_consumer_new(ob, name, &c, &err));
    OK(outbox_consumer_set(c, "retry", "base=1ms,cap=1ms,attempts=3,jitter=none,outage=0s", &err));
    return c;
}

static outbox_verdict misbehave(struct script *s, outbox_tx *tx)
{
    switch (s->what) {
    case GO_WELL: return OUTBOX_DONE;
    case FAIL:
    case FAIL_BEFORE: return outbox_fail(tx, OUTBOX_RETRY, "told to fail");
    case REJECT: return outbox_fail(tx, OUTBOX_REJECT, "told to reject");
    case IS_DOWN: return outbox_fail(tx, OUTBOX_DOWN, "told to be down");
    case NOT_MINE: return outbox_fail(tx, OUTBOX_NOT_MINE, "never heard of it");
    case COMMIT: db_tx(tx, "COMMIT"); return OUTBOX_DONE;
    case ROLLBACK: db_tx(tx, "ROLLBACK"); return OUTBOX_DONE;
    case COMMIT_AND_BEGIN:
        db_tx(tx, "COMMIT");
        db_tx(tx, "BEGIN");
        return OUTBOX_DONE;
    case ROLLBACK_AND_BEGIN:
        db_tx(tx, "ROLLBACK");
        db_tx(tx, "BEGIN");
        return OUTBOX_DONE;
    case ERROR: db_tx(tx, "INSERT INTO @no_such_table VALUES (1)"); return OUTBOX_DONE;
    }
    return OUTBOX_DONE;
}

int effect(outbox_tx *tx, const char *handler, const outbox_event *ev)
{
    return db_tx(tx, "INSERT INTO @effect (handler, key) VALUES ('%s', '%s')", handler,
                 outbox_event_payload(ev, NULL));
}

outbox_verdict play(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct script *s = ctx;
    bool now = s->at < 0 || number_of(ev) == s->at;
    s->calls++;
    if (now)
        s->calls_at++;
    if (outbox_event_attempt(ev) > s->last_attempt)
        s->last_attempt = outbox_event_attempt(ev);
    now = now && (s->times == 0 || s->calls_at <= s->times);
    if (now && s->what == FAIL_BEFORE)
        return misbehave(s, tx);
    if (effect(tx, s->name, ev) != 0)
        return outbox_fail(tx, OUTBOX_RETRY, "no effect");
    return now ? misbehave(s, tx) : OUTBOX_DONE;
}

void handler(outbox_consumer *c, struct script *s)
{
    OK(outbox_add_handler(c, s->name, "e", play, s, 0, &err));
}

void through(outbox *ob)
{
    OK(outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err));
}

void exact(const char *name, int n, int but)
{
    char sql[200];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM @effect WHERE handler = '%s'", name);
    assert_int_equal(db_number(sql), but < 0 ? n : n - 1);
    snprintf(sql, sizeof sql, "SELECT count(DISTINCT key) FROM @effect WHERE handler = '%s'", name);
    assert_int_equal(db_number(sql), but < 0 ? n : n - 1);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM @effect WHERE handler = '%s' AND key = '%d'",
             name, but);
    assert_int_equal(db_number(sql), 0);
}

void forget_positions(void)
{
    db_do("DELETE FROM @lane");
    db_do("DELETE FROM @consumer");
}
