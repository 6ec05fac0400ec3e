/* turn.h: a call that makes turns: its requests and its answers. */
#ifndef STORE_POSTGRES_TURN_H
#define STORE_POSTGRES_TURN_H

#include "base/buf.h"
#include "store/postgres/postgres.h"

/* How the server makes turns: see sql/postgres/internal/turn.sql. PATH_ANY is _turn, for one turn;
 * the others are _turns. */
enum pg_path { PATH_ANY, PATH_SINGLE, PATH_BATCH };

/* One turn of a call. */
struct pg_request {
    const struct settlement *s;      /* NULL: settles nothing */
    const struct claim_request *req; /* NULL: claims nothing */
    size_t max_events;               /* at most that of req */
    int64_t passed_over; /* seq of a parked event to skip, instead of the outcomes of s; 0: none */
    const struct pg_window *ahead; /* where n_ahead events were read ahead; NULL: none were */
    size_t n_ahead;
};

/* The answer to one turn. The claim has the events in (from, to] of its window that match the
 * consumer's filter. The strings belong to the result. */
struct pg_answer {
    size_t place; /* of the request in the call */
    bool lost, paused, changed, busy, through, skipped, suspect_due;
    int64_t crashed, buried, wait_ms;
    int64_t now_ms; /* the database's clock */
    int64_t epoch, lane;
    size_t n; /* events in the claim; 0: no claim */
    bool suspect;
    const char *held, *keys; /* of a claim of parked events: their seqs, and the history of each */
    const char *seen, *target;
    int64_t floor, from, to, window_end;
    bool quiet; /* no other event is new */
    int64_t members;
    int row, rows;   /* its rows in the result */
    bool has_events; /* the events are in these rows */
};

/* ---- request.c ---- */

/* pg_request_add adds a turn to a call's list of requests, which is empty at first; the place of
 * a request is a number of the caller's. pg_request_list ends the list, and returns it as a
 * parameter of the statement; NULL: out of memory. */
int pg_request_add(struct buf *list, struct pg_store *st, size_t place, const struct pg_request *q,
                   struct error *err);
const char *pg_request_list(struct buf *list);

/* ---- turn.c ---- */

/* pg_turn_start sends a call, and pg_finish waits for its result. pg_answer_at reads the answer in
 * the rows from `row` on. */
int pg_turn_start(struct pg_store *st, enum pg_path path, struct buf *list, struct error *err);
struct pg_answer pg_answer_at(const PGresult *r, int row);

/* pg_check_open connects, and refuses a turn inside a transaction, whether ours or begun by hand:
 * its claim would not be durable. */
int pg_check_open(struct pg_store *st, struct error *err);
/* pg_cache_of returns the turn cache of the consumer: the request's, or the handle's. */
struct turn_cache *pg_cache_of(struct pg_store *st, const struct claim_request *req);
/* pg_pulls_in returns whether clock repair is due, which examines all parked events. */
bool pg_pulls_in(struct pg_store *st, const struct claim_request *req);
/* pg_drop_claim settles a claim without wanted events, and empties *b. passed_over: see struct
 * pg_request. */
int pg_drop_claim(struct pg_store *st, const struct claim_request *req, struct batch *b,
                  int64_t passed_over, struct error *err);
/* pg_put_back releases a claim whose events could not be read, for example for lack of memory: no
 * worker has tried them, and an expired lease would count as an attempt. */
void pg_put_back(struct pg_store *st, const struct claim_request *req, struct batch *b);
/* pg_unread reports that the settlement was recorded and the claim could not be read. An error
 * would mean that nothing was done. */
void pg_unread(struct batch *b, struct claim_hint *hint);
/* pg_shrink ends a claim after `last`: later events did not fit into memory, and are claimed
 * again. */
int pg_shrink(struct pg_store *st, const struct claim_request *req, int64_t epoch, int64_t last,
              struct error *err);

#endif
