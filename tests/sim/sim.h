/* sim.h: a world of producers, relays, operators and sinks around the real engine and the real
 * store, where time is a number and a seed determines every event. docs/proof.md describes what it
 * proves.
 *
 * Events are known by their number in the producers' log (`n`, which is in the payload). All
 * randomness comes from one generator, in execution order; nothing depends on addresses, ids or the
 * machine's clock. So a seed and a number of steps determine a whole history. */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include <setjmp.h>
#include <stdatomic.h>

#include "../torture/fail.h" /* where memory runs out, and when */
#include "engine/pipeline.h"
#include "sink/handlers.h"
#include "store/store.h"

#define SIM_EVENTS 512
#define SIM_CONSUMERS 3
#define SIM_RELAYS 3
#define SIM_PRODUCERS 3
#define SIM_BATCH 8
#define SIM_CLAIMS 8192
#define SIM_VERSIONS 64
#define SIM_KEYS 4
#define SIM_HANDLERS 2
#define SIM_LEASE 2000 /* ms */
#define SIM_ATTEMPTS 4
#define SIM_BIG 30000
#define SIM_PAYLOAD (SIM_BIG + 100)
#define SIM_MEMORY (200 * 1024) /* a second batch seldom fits in */
#define SIM_OUTAGES 256
#define SIM_FAILURES 16
#define SIM_PASSED 4096
#define SIM_TX 6 /* events in a producer's transaction */

/* A producer's knowledge of an event. */
enum told { TOLD_OPEN, TOLD_COMMITTED, TOLD_NOTHING };
struct fact {
    enum told told;
    int key;  /* -1: none */
    int type; /* of sim_types */
    bool poison;
    bool big; /* too large to share a block of memory with others */
    bool trimmed;
    int inserted, ended; /* ticks */
    int64_t seq;
};

/* When a sink received an event. */
struct sending {
    int64_t at; /* monotonic; 0: never */
    int outage; /* the number of the sink's outage; 0: it was not out */
};

/* The checker's knowledge of an event and a consumer. (1) holder != 0: the epoch of the unsettled
 * claim that has it. */
struct track {
    int first;    /* the place of its first arrival among all arrivals; 0: none */
    int attempts; /* with so many the next one must be right */
    int64_t holder;
    bool present; /* it existed when the consumer was created, and must be delivered */
    int failures; /* and the last one: */
    struct sending failed[SIM_FAILURES];
    bool settled; /* as delivered */
    bool dead, was_dead, dropped;
};

enum claim_state { CLAIM_LIVE, CLAIM_SETTLED, CLAIM_SUPERSEDED };
struct claim {
    int consumer, life; /* which consumer, and which one of that name */
    int relay;
    unsigned start; /* of the relay */
    int64_t epoch;
    enum claim_state state;
    bool suspect;
    bool blamed; /* if its worker vanishes, that counts as an attempt of its event */
    size_t n;
    int ev[SIM_BATCH];
    bool delivered[SIM_BATCH]; /* the sink reported it */
    int failed[SIM_BATCH];     /* how often it answered retry or reject */
    bool rejected[SIM_BATCH], refused[SIM_BATCH];
    struct sending sent[SIM_BATCH]; /* of the last that failed */
    /* a settlement was tried, when so many deliveries had got through */
    bool judged;
    size_t passed;
    int64_t until_least; /* wall ms: no other worker may claim it before */
    int64_t mono_until;  /* the latest that the relay may rely on */
};

enum kind { KIND_ASYNC, KIND_FAILSTOP, KIND_EFFECTS, KIND_EACH, KINDS };
enum mood { MOOD_GOOD, MOOD_FLAKY, MOOD_DOWN, MOOD_REJECTS, MOOD_OUT, MOODS };

struct settings {
    enum order order;
    int lanes, batch, filter;
};

struct subject { /* a consumer */
    char name[8];
    enum kind kind;
    enum mood mood;
    int outages; /* so far; the last one is under way while mood is MOOD_OUT */
    int64_t outage_end[SIM_OUTAGES];
    bool there, paused;
    int life;             /* how often the consumer was created */
    struct settings want; /* the settings of the next relay */
    struct settings reg;  /* the registered settings */
    enum start start;
    int64_t start_seq;
    int created; /* tick */
    struct {
        int filter, since;
    } version[SIM_VERSIONS];
    int n_versions;
    int64_t epoch, floor, delivered;
    struct track t[SIM_EVENTS];
    int outside[SIM_EVENTS]; /* how often its external handler acted */
};

struct sim;
struct relay;

/* A sink that keeps its deliveries until the scheduler ends them. */
struct model {
    struct sink base;
    struct sim *w;
    struct relay *r;
    int c;
    size_t n, capacity;
    struct delivery *d[64];
    /* The claim of each, since an event may be in flight for an old one, too. */
    struct claim *k[64];
    struct sending sent[64];
    int64_t passed[SIM_PASSED]; /* when the delivery that got through was sent */
    size_t n_passed;
};

struct settled { /* a settlement's content, kept until its transaction is over */
    bool any, lost;
    struct claim *k;
    size_t n;
    struct {
        int ev;
        enum outcome_kind kind;
        int attempts;
        bool released;
    } e[SIM_BATCH];
};

struct pipe {
    bool up;
    struct settings as; /* its settings at the start */
    struct consumer c;
    struct store *st, *work;
    struct pipeline *p;
    struct model *model;
    struct sink *sk;
    struct settled tx; /* of `work` */
    int64_t began;     /* wall: when its transaction was */
    bool gone;         /* whether its transaction was lost with the connection */
    struct handler h[SIM_HANDLERS];
    struct handler_ctx {
        struct sim *w;
        struct relay *r;
        int c, i;
    } ctx[SIM_HANDLERS];
};

struct relay {
    int id;
    bool up;
    unsigned start;
    char owner[24];
    struct suspects suspects;
    struct budget budget;
    struct rng rng;
    jmp_buf *crash; /* the target of the jump when it dies within a step */
    struct pipe pipe[SIM_CONSUMERS];
};

struct producer {
    struct store *st;
    bool open;
    size_t n;
    int ev[SIM_TX];
};

/* The troubles that this seed has. */
struct plan {
    uint64_t calls; /* 1 in so many calls of a store or sink fails; 0: none */
    bool jumps, oom, big, operators, poison, ticking, crashes, changes, outages;
};

enum fault {
    FAULT_CRASH,
    FAULT_BUSY,
    FAULT_LOST,
    FAULT_SLOW,
    FAULT_GONE,
    FAULT_JUMP,
    FAULT_OOM,
    FAULT_POISON,
    FAULT_UNKNOWN,
    FAULT_ZOMBIE,
    FAULT_SINK,
    FAULT_OUTAGE,
    FAULTS
};
extern const char *const sim_faults[FAULTS];

struct totals {
    uint64_t seeds, steps, events, claims, settled, arrivals, repeats, lost_claims, dead, effects;
    uint64_t fault[FAULTS];
};

struct sim {
    uint64_t seed;
    int steps;
    bool trace;
    const struct backend *on;
    int64_t numbered; /* the last seq that sim_number has seen */
    struct rng rng;
    struct plan plan;
    int tick;  /* counts of events */
    int depth; /* of calls that take time */
    bool healing;
    int64_t mono, wall;
    struct clock clock;
    struct log log;
    struct store *st;          /* of operators */
    const struct pipe *writer; /* the owner of the open transaction, with a single writer */
    struct producer producer[SIM_PRODUCERS];
    struct relay relay[SIM_RELAYS];
    struct subject subject[SIM_CONSUMERS];
    struct fact fact[SIM_EVENTS];
    int n_facts;
    int64_t next_seq;
    struct claim claim[SIM_CLAIMS];
    size_t n_claims;
    int arrivals;
    struct totals *totals;
    jmp_buf failed;
    char why[512];
};

/* When an event gets its number. */
enum numbers {
    NUMBERED_AT_COMMIT, /* the store has one writer */
    NUMBERED_AT_INSERT,
    NUMBERED_LATER, /* when a worker polls */
};

typedef void effect_visit(struct sim *w, int handler, int consumer, int n);

/* A kind of store, as the world needs it: backend_*.c. */
struct backend {
    const char *name; /* its option; NULL: it is the default one */
    const char *shown;
    enum numbers numbers;
    bool one_writer;
    const char *effects; /* the application's table, and the type of its counter column */
    const char *counter;
    /* open returns an empty outbox. */
    struct store *(*open)(struct sim *w, const struct store_options *opt);
    void (*clean)(void);
    /* tick and number: see sim_tick and sim_number; NULL: not needed */
    void (*tick)(const struct sim *w);
    void (*number)(struct sim *w);
    /* run runs a statement on the connection of a store. each calls back with each row of three
     * numbers that a query returns. */
    int (*run)(struct store *st, const char *sql);
    int (*each)(struct sim *w, const char *sql, effect_visit *visit);
};
extern const struct backend backend_sqlite, backend_postgres, backend_mariadb;

extern const char *const sim_types[3];
extern const struct sim_filter {
    const char *events, *where;
} sim_filters[4];

/* world.c. sim_run runs one seed. If it fails, it returns false, and w->why has the reason. */
bool sim_run(struct sim *w, uint64_t seed, int steps, struct totals *totals);
/* sim_fail ends the run, since the checker saw a violation. */
void sim_fail(struct sim *w, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
void sim_trace(struct sim *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_pass(struct sim *w, int64_t ms);
uint64_t sim_below(struct sim *w, uint64_t n);
/* sim_one_in is true once in n times; never for 0. */
bool sim_one_in(struct sim *w, uint64_t n);
void sim_fault(struct sim *w, enum fault f);
/* sim_free tells whether no transaction blocks other writers. */
bool sim_free(const struct sim *w);
/* sim_tick tells the store that time has passed, and sim_number learns the numbers that events got
 * meanwhile, where necessary. */
void sim_tick(struct sim *w);
void sim_number(struct sim *w);

/* actors.c: actors_act performs one action, but not one of relay `except`, which is in a call. */
void actors_act(struct sim *w, const struct relay *except);
void actors_end_producers(struct sim *w);
void actors_audit(struct sim *w);

/* relay.c, and faulty.c: the store as relays see it */
/* relay_up starts c in r, if it is not running. It returns false if that is impossible now; w->why
 * has the reason. */
/* relay_deadly tells whether such a consumer's events can kill their relay. */
bool relay_deadly(enum kind k);
bool relay_up(struct sim *w, struct relay *r, int c);
void relay_down(struct sim *w, struct relay *r);
void relay_stop(struct sim *w, struct relay *r, int c);
/* relay_step returns whether it should be called again at once. */
bool relay_step(struct sim *w, struct relay *r, int c);
/* relay_die is a crash in the middle of r's current action. */
void relay_die(struct sim *w, struct relay *r) __attribute__((noreturn));
/* relay_call simulates what may happen during a call that leaves the process: time passes, other
 * actors run, the process dies. */
void relay_call(struct sim *w, struct relay *r);
/* relay_meanwhile makes a call last while other actors run. */
void relay_meanwhile(struct sim *w, struct relay *r);
void faulty_wrap(struct sim *w, struct store *st);

/* sink.c. sink_mood sets the mood of the sinks of c from now on. */
void sink_mood(struct sim *w, int c, enum mood mood);
struct model *model_new(struct sim *w, struct relay *r, int c);
/* model_end ends the k-th delivery, as the sink's mood decides. */
void model_end(struct model *m, size_t k);
enum sink_status handler_act(struct handler_call *call, const struct delivery *d, void *ctx);

/* effect.c: the application's own table, which handlers write to. effect_init recreates it. */
void effect_init(struct sim *w);
int effect_put(struct sim *w, struct store *tx, int handler, int consumer, int n);
/* effect_each calls back in the order in which they took effect. */
void effect_each(struct sim *w, effect_visit *visit);

/* The checker. Each function records something that has happened, and fails the run if it must
 * not happen. */

/* check.c: the producers' log, consumers, and sinks. check_payload writes the payload of event n,
 * and returns its length. */
size_t check_payload(int n, const struct fact *f, char out[SIM_PAYLOAD]);
/* check_number finds an event in the log and returns its number. It must have been committed, and
 * be unchanged (G1, G13). */
int check_number(struct sim *w, const struct event *ev);
bool check_matches(int filter, const struct fact *f);
/* check_required tells whether c must get event n in the end. */
bool check_required(const struct sim *w, int c, int n);
void check_created(struct sim *w, int c);
/* check_version: from now on c has this filter. */
void check_version(struct sim *w, int c, int filter);
/* check_submitted: a relay hands an event to its sink. The claim must be its own, and not past its
 * known lease; only one event of a key is in flight at a time, and a suspect is alone (G4, G5, G9).
 * It returns the claim. */
struct claim *check_submitted(struct sim *w, const struct model *m, const struct delivery *d);
/* check_arrived: an event has reached the destination. First arrivals of a key are in order
 * (G4). */
void check_arrived(struct sim *w, struct claim *k, int c, int n, enum order order);
void check_answered(struct sim *w, struct claim *k, int n, enum sink_status s,
                    const struct sending *sent);

/* check_claim.c: claims.
 * A deed is done by a relay for a consumer, at a time between these two by the store's clock. */
struct deed {
    const struct relay *r;
    int c;
    int64_t wall, wall_most; /* in a transaction: its value when that began */
    bool in_tx;
};
void check_claimed(struct sim *w, const struct deed *by, const struct batch *b);
void check_extended(struct sim *w, const struct deed *by, int64_t epoch, bool lost);
/* check_absolved: a claim is no longer blamed, because its worker has other suspects in flight. */
void check_absolved(struct sim *w, const char *consumer, int64_t epoch);
/* check_claim_of is the claim that a delivery belongs to. */
struct claim *check_claim_of(struct sim *w, const struct relay *r, int c, const struct delivery *d);

/* check_settle.c: settlements. check_judged: a settlement is about to be tried. check_settling
 * examines it; its outcomes count only from check_settled on. */
void check_judged(struct sim *w, const struct relay *r, int c, int64_t epoch);
void check_settling(struct sim *w, const struct deed *by, const struct settlement *s, bool lost,
                    struct settled *ret);
void check_settled(struct sim *w, struct settled *s);
/* check_buried: the store reports n events buried because they killed the process too often
 * (G9). */
void check_buried(struct sim *w, struct store *st, int c, size_t n);

/* check_end.c: operators, and the end. check_jumped: the wall clock was set back. Expired leases
 * may be valid again, and other leases are shortened sooner or later. */
void check_jumped(struct sim *w, int64_t back_ms);
void check_redriven(struct sim *w, int c);
void check_dropped(struct sim *w, int c);
/* check_trimmed: events below tail were deleted, and no consumer may have needed them (G10); 0: all
 * were. */
void check_trimmed(struct sim *w, int64_t tail);
/* check_info: this is the store's report on a consumer. No event below its floor is needed, and the
 * floor never moves back. */
void check_info(struct sim *w, int c, const struct consumer_info *i);
/* check_end: c has caught up, and no relay is running. */
void check_end(struct sim *w, int c, const struct consumer_info *i);

#endif
