/* handlers_rig.h: an outbox with scripted handlers, for test_handlers.c and the handlers_*.c files
 * beside it. The comments on db_* are in db.h. */
#ifndef TESTS_API_HANDLERS_RIG_H
#define TESTS_API_HANDLERS_RIG_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../suite.h"
#include "db.h"
#include "ok.h"

extern outbox_error err;

/* The state of a test is an empty outbox. */
int fresh(void **state);
int done(void **state);
#define ON(test) cmocka_unit_test_setup_teardown(test, fresh, done)

/* logging returns options that keep the log; logged tells whether the log contains this text since
 * fresh. Both may be called from any thread. */
outbox_options logging(void);
bool logged(const char *part);

void emit_one(outbox *ob, const char *type, const char *key, const char *payload);
/* emit emits n events "e" with payloads 0, 1, …, each with its own key. */
void emit(outbox *ob, int n);
/* number_of is the number in the payload of an event. */
int number_of(const outbox_event *ev);
void nap(int64_t ms);

/* consumer creates a consumer with three attempts and short waits. */
outbox_consumer *consumer(outbox *ob, const char *name);

/* A handler's action for one event, and how often it was called. */
struct script {
    const char *name;
    int at;    /* the event; -1: all */
    int times; /* how often; 0: always */
    enum {
        GO_WELL,
        FAIL,
        FAIL_BEFORE, /* before its effect */
        REJECT,
        IS_DOWN,
        NOT_MINE,
        COMMIT,
        ROLLBACK,
        COMMIT_AND_BEGIN,
        ROLLBACK_AND_BEGIN,
        ERROR
    } what;
    atomic_int calls, calls_at, last_attempt; /* last_attempt: the highest it was called for */
};

/* play is a handler that follows the script that is its context. handler adds it to a consumer, for
 * events "e". */
outbox_verdict play(const outbox_event *ev, outbox_tx *tx, void *ctx);
void handler(outbox_consumer *c, struct script *s);
/* effect takes effect for an event, within the handler's transaction; -1 on failure. */
int effect(outbox_tx *tx, const char *handler, const outbox_event *ev);

/* through runs until no work is left. */
void through(outbox *ob);
/* exact checks that each of n events has taken effect once for a handler, and event `but` has had
 * no effect (-1: no exception). */
void exact(const char *name, int n, int but);
/* forget_positions deletes all consumers, as if no consumer had ever read anything. */
void forget_positions(void);

extern const struct suite_part handlers_several_tests, handlers_outside_tests, handlers_time_tests;

#endif
