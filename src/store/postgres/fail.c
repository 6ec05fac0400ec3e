/* fail.c: mapping PostgreSQL's errors to ours. */
#include <stdio.h>

#include "base/text.h"
#include "store/postgres/postgres.h"

/* The meaning of a SQLSTATE. The first match counts. OB is our own class (docs/sql.md). */
static const struct meaning {
    const char *state; /* a prefix of the SQLSTATE */
    enum err_code code;
    enum retry_class retry_class;
} meanings[] = {
    {"OB001", ERR_CONFLICT, CLASS_RETRY}, /* it contradicts the stored state */
    {"OB002", ERR_CONFIG, CLASS_RETRY},   /* not at this isolation level */
    {"OB003", ERR_NOTFOUND, CLASS_FATAL}, /* no such consumer, table or role */
    {"OB004", ERR_CONFIG, CLASS_FATAL},   /* a bad argument, or a wrong tenant */
    {"OB005", ERR_NEWER, CLASS_FATAL},    /* the outbox has another version */
    {"OB006", ERR_CONFIG, CLASS_RETRY},   /* the outbox has to be repaired first */
    {"2200H", ERR_CONFIG, CLASS_RETRY},   /* a sequence has no number left */
    {"42P01", ERR_NOTOURS, CLASS_FATAL},  /* no such table */
    {"3F000", ERR_NOTOURS, CLASS_FATAL},  /* no such schema */
    {"42883", ERR_NOTOURS, CLASS_FATAL},  /* no such function */
    {"42501", ERR_READONLY, CLASS_RETRY}, /* the role lacks a right */
    {"25006", ERR_READONLY, CLASS_RETRY}, /* the transaction is read-only */
    {"40001", ERR_BUSY, CLASS_RETRY},     /* serialization failure */
    {"40P01", ERR_BUSY, CLASS_RETRY},     /* deadlock */
    {"55P03", ERR_BUSY, CLASS_RETRY},     /* a lock could not be acquired in time */
    {"57014", ERR_BUSY, CLASS_RETRY},     /* the statement was cancelled, or took too long */
    {"53100", ERR_FULL, CLASS_RETRY},     /* the disk is full */
    {"53", ERR_UNAVAILABLE, CLASS_RETRY}, /* resources of the server */
    {"57", ERR_UNAVAILABLE, CLASS_RETRY}, /* the server or our session is being stopped */
    {"08", ERR_UNAVAILABLE, CLASS_RETRY}, /* the connection */
    {"58", ERR_UNAVAILABLE, CLASS_RETRY}, /* the system that the server runs on */
    {"28", ERR_UNAVAILABLE, CLASS_RETRY}, /* authentication */
    {"22", ERR_INVALID, CLASS_REJECT},    /* a value that the server refuses */
    {"23", ERR_INVALID, CLASS_REJECT},    /* a violated constraint */
    {"25", ERR_MISUSE, CLASS_RETRY},      /* the state of the transaction */
};

/* Copies the first line of a message, without the severity that libpq puts before it. */
static void one_line(const char *from, char *to, size_t size)
{
    size_t n = 0;
    if (strncmp(from, "ERROR:  ", 8) == 0)
        from += 8;
    for (; *from && *from != '\n' && n + 1 < size; from++)
        to[n++] = *from;
    to[n] = '\0';
}

/* Returns advice for errors whose message has none. */
static const char *advice_for(const char *state)
{
    if (strcmp(state, "2200H") == 0)
        return "run `outbox status` as the outbox's owner: it repairs the sequence";
    if (strcmp(state, "42501") == 0)
        return "grant the role its part (docs/sql.md, `allow`)";
    if (strcmp(state, "25006") == 0)
        return "connect to the primary, or turn default_transaction_read_only off for this role";
    return NULL;
}

/* Reports an error of the server that has a SQLSTATE. */
static int fail_as(struct pg_store *st, const char *state, const PGresult *r, struct error *err)
{
    struct meaning m = {"", ERR_INTERNAL, CLASS_RETRY};
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++) {
        if (strncmp(state, meanings[i].state, strlen(meanings[i].state)) == 0) {
            m = meanings[i];
            break;
        }
    }

    char said[300];
    one_line(PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY), said, sizeof said);
    if (m.code == ERR_NOTOURS && st->worked)
        return err_class(err, m.code, CLASS_RETRY, 0,
                         "%s: the outbox in schema %s is gone, or being restored (%s)", st->shown,
                         st->quoted, said);
    if (m.code == ERR_NOTOURS)
        return err_class(err, m.code, m.retry_class, 0,
                         "%s: no outbox in schema %s, or an incomplete one (%s); create one with "
                         "`outbox init`, or restore it",
                         st->shown, st->quoted, said);
    if (m.code == ERR_INTERNAL)
        return err_class(err, m.code, m.retry_class, 0, "%s: %s (SQLSTATE %s)", st->shown, said,
                         state);

    const char *advice = advice_for(state);
    if (!advice)
        advice = PQresultErrorField(r, PG_DIAG_MESSAGE_HINT);
    if (!advice)
        return err_class(err, m.code, m.retry_class, 0, "%s: %s", st->shown, said);
    return err_class(err, m.code, m.retry_class, 0, "%s: %s; %s", st->shown, said, advice);
}

/* Whether the session's prepared statements or cached plans are outdated, because tables were
 * recreated, a statement no longer exists, or a column was added. PostgreSQL replans a cached query
 * whose tables have changed. It does not if the query reads them only through a function: that ends
 * in an internal error. A new session has an empty cache. */
static bool session_outdated(const char *state)
{
    static const char *const states[] = {"0A000", "26000", "42703", "42804", "42P13", "XX000"};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strcmp(state, states[i]) == 0)
            return true;
    return false;
}

int pg_fail(struct pg_store *st, PGconn *db, const PGresult *r, struct error *err)
{
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    bool coded = state != NULL;
    if (!coded)
        state = "";
    snprintf(st->state, sizeof st->state, "%s", state);
    if (db == st->db && session_outdated(state))
        st->stale = true;

    if (st->silent) {
        char limit[32];
        text_duration_show(st->answer_ms, limit);
        st->silent = false;
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                         "%s: the server has not answered for %s", st->shown, limit);
    }
    if (coded && PQstatus(db) != CONNECTION_BAD)
        return fail_as(st, state, r, err);

    /* The connection broke, or libpq failed. */
    char said[300];
    const char *message = PQresultErrorMessage(r);
    if (*message == '\0')
        message = PQerrorMessage(db);
    one_line(message, said, sizeof said);
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0, "%s: %s", st->shown,
                     *said ? said : "the connection was lost");
}
