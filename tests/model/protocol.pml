/* protocol.pml: claim, expiry, take-over, settle, park, retry, bury and retention, for spin.
 *
 * One consumer with order = key and one lane; two relays, each with one claim at a time; three events, of which the first
 * and the third have one key. A relay may die between any two steps, stop in an orderly way, be slow for longer than its
 * lease, or never hear that its turn committed. The sink may take an event, refuse it, or take it and not say so; the second
 * event, which has a key to itself, it takes. The clock
 * may end any lease at any time. Retention takes what it may as soon as it may, which is the worst it can do.
 *
 * Every turn of a store is one atomic step here, because there it is one transaction. docs/testing.md says which lines of
 * the sources each part stands for. Each -D BUG switch puts in one mistake that the assertions must find. */

#define N 3 /* events, numbered from 1: a number is a place in commit order */
#define KEY(ev) ((ev) & 1)
#define EPOCHS 6 /* names in use at once; a name is free again once no claim and no relay has it */
#define ATTEMPTS 2
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef STOPS
#define STOPS 1
#endif
#ifndef LOST_REPLIES
#define LOST_REPLIES 1
#endif
/* The relays are alike. Where only one such thing happens, it may as well happen to the first. */
#if CRASHES + STOPS + LOST_REPLIES > 1
#define UNLUCKY true
#else
#define UNLUCKY (r == 0)
#endif

/* parked[].due: a wait that may end at any time is one that may have ended already. */
#define BEHIND 0 /* NULL in the table: waits for the one before it */
#define NOW 1

/* relay[].what */
#define NOT_IN_BATCH 0
#define UNTRIED 1
#define FLYING 2
#define DELIVERED 3
#define RETRY 4
#define DEAD 5
#define HELD 6 /* OUTCOME_BEHIND */
#define RELEASED 7

typedef a_claim { bit used; bit expired; bit parked; byte owner; byte from; byte to };
typedef a_row { bit there; bit careful; bit due; byte attempts; byte claim };
typedef a_relay { byte epoch; bit parked; bit careful; bit leaving; byte what[N + 1]; byte attempts[N + 1] };

/* The store. */
byte head = 2, position, trimmed; /* the first two events are there, the third may come at any time */
a_claim claim[EPOCHS + 1];
a_row parked[N + 1];
bool dead[N + 1];

a_relay relay[2];
byte crashes = CRASHES, stops = STOPS, lost_replies = LOST_REPLIES;

/* What really happened, for the assertions alone. */
bool arrived[N + 1]; /* the sink has it */
bool done[N + 1];    /* settled as delivered */

#define ENDED(ev) (done[ev] || dead[ev])
#define ALL_ENDED (head == N && ENDED(1) && ENDED(2) && ENDED(3))
#define HAS(c, ev) (claim[c].used && (claim[c].parked -> (parked[ev].there && parked[ev].claim == c) : \
                    (ev > claim[c].from && ev <= claim[c].to)))
#define EARLIER_PARKED(ev) (ev == 3 && parked[1].there)
#define KEY_PARKED(ev) ((KEY(ev) == 1 && (parked[1].there || parked[3].there)) || (ev == 2 && parked[2].there))
#define FRESH_CLAIM(c) (claim[c].used && !claim[c].parked)

/* No claim that lives, other than c, has the event. */
#define NOBODY_ELSE(c, ev) \
    ((c == 1 || !HAS(1, ev) || claim[1].expired) && (c == 2 || !HAS(2, ev) || claim[2].expired) && \
     (c == 3 || !HAS(3, ev) || claim[3].expired) && (c == 4 || !HAS(4, ev) || claim[4].expired) && \
     (c == 5 || !HAS(5, ev) || claim[5].expired) && (c == 6 || !HAS(6, ev) || claim[6].expired))

/* ---- parking and burying ---- */

inline park(ev, count, when, care)
{
    parked[ev].due = (EARLIER_PARKED(ev) -> BEHIND : when);
    parked[ev].there = 1;
    parked[ev].attempts = count;
    parked[ev].careful = care;
    parked[ev].claim = 0
}

inline forget(ev)
{
    parked[ev].there = 0;
    parked[ev].attempts = 0;
    parked[ev].careful = 0;
    parked[ev].due = BEHIND;
    parked[ev].claim = 0
}

/* promote: the first row of a key that lost its first row is due. */
inline promote()
{
#ifndef BUG_NO_PROMOTE
    if
    :: parked[1].there && !parked[1].claim && parked[1].due == BEHIND -> parked[1].due = NOW
    :: !parked[1].there && parked[3].there && !parked[3].claim && parked[3].due == BEHIND -> parked[3].due = NOW
    :: else
    fi;
    if
    :: parked[2].there && !parked[2].claim && parked[2].due == BEHIND -> parked[2].due = NOW
    :: else
    fi
#endif
    skip
}

inline bury(ev)
{
    dead[ev] = true;
    forget(ev)
}

/* ---- taking over ---- */

inline dissolve(c)
{
    i = 1;
    do
    :: i > N -> break
    :: i <= N ->
        if
        :: HAS(c, i) && claim[c].parked && parked[i].careful && parked[i].attempts >= ATTEMPTS ->
            bury(i);
            promote()
        :: HAS(c, i) && claim[c].parked && !(parked[i].careful && parked[i].attempts >= ATTEMPTS) ->
            parked[i].claim = 0;
            parked[i].careful = 1
#ifdef BUG_RANGE_EDGE
        :: HAS(c, i) && !claim[c].parked && i < claim[c].to ->
#else
        :: HAS(c, i) && !claim[c].parked ->
#endif
            assert(i > trimmed); /* it is read again */
            park(i, 0, NOW, 1)
        :: else
        fi;
        i++
    od;
    claim[c].used = 0;
    claim[c].expired = 0;
    claim[c].parked = 0;
    claim[c].owner = 0;
    claim[c].from = 0;
    claim[c].to = 0
}

inline take_over()
{
    c = 1;
    do
    :: c > EPOCHS -> break
    :: c <= EPOCHS ->
        if
#ifdef BUG_STEAL
        :: claim[c].used && claim[c].owner != r ->
            assert(claim[c].expired); /* a live one is never stolen */
#else
        :: claim[c].used && claim[c].expired ->
#endif
            dissolve(c)
        :: else
        fi;
        c++
    od
}

/* ---- settling ---- */

inline apply(ev)
{
    if
    :: relay[r].what[ev] == DELIVERED ->
        assert(arrived[ev]); /* nothing counts as delivered that was not */
        done[ev] = true
    :: relay[r].what[ev] == RETRY ->
#ifndef BUG_LOST_RETRY
        park(ev, relay[r].attempts[ev] + 1, NOW, 0)
#else
        skip
#endif
    :: relay[r].what[ev] == DEAD -> bury(ev)
    :: relay[r].what[ev] == HELD ->
        if
        :: relay[r].parked -> parked[ev].claim = 0; parked[ev].attempts = relay[r].attempts[ev]
        :: else -> park(ev, relay[r].attempts[ev], NOW, 0)
        fi
    :: else
    fi
}

inline settle()
{
    c = relay[r].epoch;
#ifdef BUG_NO_FENCE
    if
    :: true ->
#else
    if
    :: claim[c].used && !claim[c].expired && claim[c].owner == r + 1 ->
#endif
        assert(claim[c].used && !claim[c].expired); /* a zombie changes nothing */
        i = 1;
        do
        :: i > N -> break
        :: i <= N -> apply(i); i++
        od;
        i = 1;
        do /* give back the end of the range */
        :: i > N || relay[r].what[i] == RELEASED -> break
        :: else -> i++
        od;
        if
#ifdef BUG_RELEASE_EDGE
        :: i <= N -> position = i
#else
        :: i <= N -> position = i - 1
#endif
        :: else
        fi;
        i = 1;
        do
        :: i > N -> break
        :: i <= N ->
            if
            :: relay[r].parked && parked[i].there && parked[i].claim == c -> forget(i)
            :: else
            fi;
            /* Everything in the claim is accounted for. */
            assert(relay[r].what[i] == NOT_IN_BATCH || ENDED(i) || parked[i].there || i > position);
            i++
        od;
        promote();
        dissolve_settled(c)
    :: else
    fi
}

inline dissolve_settled(e)
{
    claim[e].used = 0;
    claim[e].expired = 0;
    claim[e].parked = 0;
    claim[e].owner = 0;
    claim[e].from = 0;
    claim[e].to = 0
}

inline drop()
{
    relay[r].epoch = 0;
    relay[r].parked = 0;
    relay[r].careful = 0;
    relay[r].leaving = 0;
    i = 1;
    do
    :: i > N -> break
    :: i <= N -> relay[r].what[i] = NOT_IN_BATCH; relay[r].attempts[i] = 0; i++
    od
}

/* ---- claiming ---- */

#define IN_USE(e) (claim[e].used || relay[0].epoch == e || relay[1].epoch == e || was == e)
#ifdef BUG_UNKNOWN_CLAIM
#define BLOCKS(e) (FRESH_CLAIM(e) && claim[e].owner != r + 1)
#else
#define BLOCKS(e) FRESH_CLAIM(e)
#endif
#define LANE_FREE (!BLOCKS(1) && !BLOCKS(2) && !BLOCKS(3) && !BLOCKS(4) && !BLOCKS(5) && !BLOCKS(6))
#define IS_HEAD(ev) (parked[ev].there && !parked[ev].claim && parked[ev].due == NOW && !EARLIER_PARKED(ev))
#define ANY_EXPIRED (claim[1].expired || claim[2].expired || claim[3].expired || claim[4].expired || \
                     claim[5].expired || claim[6].expired)
#define MAY_CLAIM ((LANE_FREE && position < head) || IS_HEAD(1) || IS_HEAD(2) || IS_HEAD(3))

inline new_epoch(is_parked)
{
    c = 1;
    do
    :: c <= EPOCHS && IN_USE(c) -> c++
    :: else -> break
    od;
    assert(c <= EPOCHS); /* of the model: give it more names */
    relay[r].epoch = c;
    relay[r].parked = is_parked;
    claim[c].used = 1;
    claim[c].parked = is_parked;
    claim[c].owner = r + 1
}

inline take_parked(ev)
{
    assert(ev > trimmed || dead[ev]); /* retention has not taken it */
    assert(NOBODY_ELSE(0, ev));
    parked[ev].claim = relay[r].epoch;
    relay[r].what[ev] = UNTRIED;
    relay[r].attempts[ev] = parked[ev].attempts;
    relay[r].careful = parked[ev].careful;
    parked[ev].attempts = parked[ev].attempts + parked[ev].careful
}

inline claim_parked(ev)
{
    new_epoch(1);
    take_parked(ev);
    if /* what waits behind it comes along */
    :: ev == 1 && !relay[r].careful && parked[3].there && !parked[3].careful && !parked[3].claim && parked[3].due == BEHIND ->
        take_parked(3)
    :: else
    fi
}

inline claim_fresh(last)
{
    new_epoch(0);
    claim[relay[r].epoch].from = position;
    claim[relay[r].epoch].to = last;
    i = position + 1;
    do
    :: i > last -> break
    :: i <= last ->
        assert(i > trimmed);
        assert(NOBODY_ELSE(relay[r].epoch, i));
#ifdef BUG_NO_BEHIND
        relay[r].what[i] = UNTRIED;
#else
        relay[r].what[i] = (KEY_PARKED(i) -> HELD : UNTRIED);
#endif
        i++
    od;
    position = last
}

inline claim_next()
{
    if
    :: IS_HEAD(1) -> claim_parked(1)
    :: IS_HEAD(2) -> claim_parked(2)
    :: IS_HEAD(3) -> claim_parked(3)
    :: LANE_FREE && position < head -> claim_fresh(head)
    :: !MAY_CLAIM -> skip
    fi
}

/* ---- a relay ---- */

#define OPEN(ev) (relay[r].what[ev] == UNTRIED || relay[r].what[ev] == FLYING)
#define FINISHED (relay[r].epoch && !OPEN(1) && !OPEN(2) && !OPEN(3))
#ifdef BUG_DEAD_FREES
#define HOLDS(ev) (relay[r].what[ev] == RETRY || relay[r].what[ev] == HELD)
#else
#define HOLDS(ev) (relay[r].what[ev] == RETRY || relay[r].what[ev] == HELD || relay[r].what[ev] == DEAD)
#endif
#ifdef BUG_LATE_SUBMIT
#define LEASE_ALLOWS true
#else
#define LEASE_ALLOWS (claim[relay[r].epoch].used && !claim[relay[r].epoch].expired)
#endif
#define FLIES (relay[r].what[1] == FLYING || relay[r].what[2] == FLYING || relay[r].what[3] == FLYING)
/* One after the other: what flies beside it has another key, and is of no account to it. */
#define MAY_FLY(ev) (relay[r].what[ev] == UNTRIED && LEASE_ALLOWS && !relay[r].leaving && !FLIES && \
                     (ev == 1 || !OPEN(1)) && (ev != 3 || !OPEN(2)))

/* submit: the order of a key, and that nobody else is at it. */
inline submit(ev)
{
    assert(NOBODY_ELSE(relay[r].epoch, ev));
    if
    :: ev == 3 && HOLDS(1) -> relay[r].what[3] = HELD
    :: else ->
        assert(ev != 3 || arrived[1] || dead[1]);  /* what came first goes first */
        assert(ev != 1 || !arrived[3] || arrived[1]);
        relay[r].what[ev] = FLYING;
#ifdef BUG_SETTLE_FIRST
        relay[r].what[ev] = DELIVERED;
        settle();
        relay[r].epoch = 0;
        relay[r].what[ev] = FLYING
#endif
    fi
}

inline answer(ev)
{
    if
    :: arrived[ev] = true; relay[r].what[ev] = DELIVERED
    :: ev != 2 -> arrived[ev] = true; relay[r].what[ev] = (relay[r].attempts[ev] + 1 >= ATTEMPTS -> DEAD : RETRY)
    :: ev != 2 -> relay[r].what[ev] = (relay[r].attempts[ev] + 1 >= ATTEMPTS -> DEAD : RETRY)
    :: ev != 2 -> relay[r].what[ev] = DEAD
    fi
}

/* give_up: a relay that is told to stop gives back what it has not tried: the end of a fresh range by moving the position,
 * the rest as held. */
inline give_up()
{
    i = N;
    do /* the untried run at the end */
    :: i >= 1 && !relay[r].parked && relay[r].what[i] == UNTRIED -> relay[r].what[i] = RELEASED; i--
    :: i >= 1 && relay[r].what[i] == NOT_IN_BATCH -> i--
    :: else -> break
    od;
    do
    :: i >= 1 -> relay[r].what[i] = (relay[r].what[i] == UNTRIED -> HELD : relay[r].what[i]); i--
    :: else -> break
    od
}

/* Retention deletes an event that is old enough and that nobody needs: below the floor, which is the least of the position,
 * the starts of claims, and what is parked. */
#ifdef BUG_TRIM_PARKED
#define NEEDED(ev) (ev > position || RANGE(1, ev) || RANGE(2, ev) || RANGE(3, ev) || RANGE(4, ev) || RANGE(5, ev) || RANGE(6, ev))
#else
#define NEEDED(ev) (ev > position || RANGE(1, ev) || RANGE(2, ev) || RANGE(3, ev) || RANGE(4, ev) || RANGE(5, ev) || RANGE(6, ev) || \
                    (parked[1].there && ev >= 1) || (parked[2].there && ev >= 2) || (parked[3].there && ev >= 3))
#endif
#ifdef BUG_TRIM_CLAIMED
#define RANGE(e, ev) false
#else
#define RANGE(e, ev) (FRESH_CLAIM(e) && ev > claim[e].from)
#endif

inline trim()
{
    do
    :: trimmed < N && !NEEDED(trimmed + 1) -> trimmed++; assert(ENDED(trimmed))
    :: else -> break
    od
}

/* turn: take over, settle, claim: one transaction. Its answer may be lost. */
inline turn()
{
    take_over();
    if
    :: relay[r].epoch -> settle()
    :: else
    fi;
    was_leaving = relay[r].leaving;
    if
    :: lost_replies > 0 && UNLUCKY && !was_leaving && MAY_CLAIM ->
        /* It committed, and this relay does not know: it will settle again, and find its claim gone. */
        lost_replies--;
        was = relay[r].epoch;
        claim_unheard();
        relay[r].epoch = was
    :: else_claim()
    fi
}

/* The claim is made, but this relay keeps what it had in hand. */
inline claim_unheard()
{
    drop();
    claim_next();
    drop()
}

inline else_claim()
{
    true ->
    drop();
    if
    :: was_leaving -> skip
    :: else -> claim_next()
    fi
}

proctype Relay(byte r)
{
    byte i, c, was;
    bit was_leaving;
    do
    :: atomic { (FINISHED || (!relay[r].epoch && (ANY_EXPIRED || MAY_CLAIM))) -> turn(); trim(); i = 0; c = 0; was = 0; was_leaving = 0 }
    :: atomic { MAY_FLY(1) -> submit(1); i = 0; c = 0 }
    :: atomic { MAY_FLY(2) -> submit(2); i = 0; c = 0 }
    :: atomic { MAY_FLY(3) -> submit(3); i = 0; c = 0 }
    :: atomic { relay[r].what[1] == FLYING -> answer(1) }
    :: atomic { relay[r].what[2] == FLYING -> answer(2) }
    :: atomic { relay[r].what[3] == FLYING -> answer(3) }
    /* Past its deadline it asks, hears that the claim is lost, and lets go once nothing is on its way. */
    :: atomic { relay[r].epoch && !(claim[relay[r].epoch].used && !claim[relay[r].epoch].expired) && !FLIES -> drop(); i = 0 }
    :: atomic { stops > 0 && UNLUCKY && relay[r].epoch && !relay[r].leaving && !FINISHED -> stops--; relay[r].leaving = 1; give_up(); i = 0 }
    :: atomic { crashes > 0 && UNLUCKY && relay[r].epoch -> crashes--; drop(); i = 0 }
    :: atomic { ALL_ENDED && !relay[r].epoch -> break }
    od
}

/* ---- the world ---- */

proctype Producer()
{
    head = N
}

proctype Clock()
{
    do
    :: atomic { claim[1].used && !claim[1].expired -> claim[1].expired = 1 }
    :: atomic { claim[2].used && !claim[2].expired -> claim[2].expired = 1 }
    :: atomic { claim[3].used && !claim[3].expired -> claim[3].expired = 1 }
    :: atomic { claim[4].used && !claim[4].expired -> claim[4].expired = 1 }
    :: atomic { claim[5].used && !claim[5].expired -> claim[5].expired = 1 }
    :: atomic { claim[6].used && !claim[6].expired -> claim[6].expired = 1 }
    :: ALL_ENDED -> break
    od
}

init
{
    atomic {
        run Producer();
        run Clock();
        run Relay(0);
        run Relay(1)
    }
}

#ifdef LIVENESS
ltl ends { <> ALL_ENDED }
#endif
