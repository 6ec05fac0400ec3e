/* protocol.pml: claim, expiry, take-over, settle, park, retry, bury and retention, for spin.
 *
 * One consumer; two relays; three events, of which the first and the third have one key. A relay may die between any two
 * steps, stop in an orderly way, be slow for longer than its lease, or never hear that its turn committed. The sink may take
 * an event, refuse it, or take it and not say so; the second event, which has a key to itself, it takes. The clock may end any
 * lease at any time. Retention takes what it may as soon as it may, which is the worst it can do.
 *
 * Every turn of a store is one atomic step here, because there it is one transaction. tests/model/README.md says which functions of
 * the sources each part stands for, and with which of the switches below what has been checked. */

/* How it is set up: -DORDER=BY_KEY, IN_ALL or NO_ORDER, -DLANES=2, -DCLAIMS=2 (claims a relay may have at once). */
#define BY_KEY 1
#define IN_ALL 2
#define NO_ORDER 3
#ifndef ORDER
#define ORDER BY_KEY
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef CLAIMS
#define CLAIMS 1
#endif

/* How often what goes wrong: -DCRASHES=0 and so on. */
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef STOPS
#define STOPS 1
#endif
#ifndef LOST_REPLIES
#define LOST_REPLIES 1
#endif

/* Mistakes on purpose: -DBUG=BUG_NO_FENCE, or -DBUGS for a checker that takes the number from the environment. */
#define BUG_NO_FENCE 1
#define BUG_STEAL 2
#define BUG_LATE_SUBMIT 3
#define BUG_SETTLE_FIRST 4
#define BUG_LOST_RETRY 5
#define BUG_NO_BEHIND 6
#define BUG_DEAD_FREES 7
#define BUG_NO_PROMOTE 8
#define BUG_RANGE_EDGE 9
#define BUG_RELEASE_EDGE 10
#define BUG_UNKNOWN_CLAIM 11
#define BUG_TRIM_PARKED 12
#define BUG_TRIM_CLAIMED 13
#define BUG_NO_CLAIM 14
#define BUG_WINDOW_EDGE 15
#define BUG_STALE_READ 16
#define BUG_LANE_SHARED 17
#define BUG_EPOCH_AGAIN 20
#define BUG_SKIPS 21
#define BUG_FORGETS_CLAIM 22
#define BUG_NOT_CAREFUL 23
#define BUG_POISON_LIVES 24
#define BUG_DEAD_STAYS 25
#define BUG_TRIM_EDGE 26
#define BUG_LOST_GOES_ON 27
#define BUG_NOT_COUNTED 28
#define BUG_FAILURE_DELIVERED 29
#define BUG_FOLLOWER_GOES 30
#define BUG_SETTLES_LATER_FIRST 31
#define BUG_OVERTAKES 32
#define BUG_CAREFUL_BESIDE 33
#ifdef BUGS
byte bug;
#define WRONG(name) (bug == name)
#else
#ifdef BUG
#define WRONG(name) (BUG == name)
#else
#define WRONG(name) false
#endif
#endif

#define N 3 /* events, numbered from 1: a number is a place in commit order */
#define EPOCHS 6 /* names in use at once; a name is free again once no claim and no relay has it */
#define ATTEMPTS 2
/* The relays are alike. Where only one such thing happens, it may as well happen to the first. */
#if CRASHES + STOPS + LOST_REPLIES > 1
#define UNLUCKY true
#else
#define UNLUCKY (r == 0)
#endif

#if ORDER == BY_KEY
#define SAME(a, b) ((((a) + (b)) & 1) == 0)
#endif
#if ORDER == IN_ALL
#define SAME(a, b) true
#endif
#if ORDER == NO_ORDER
#define SAME(a, b) false
#endif
#if LANES == 2
#define LANE(ev) ((ev) == 2 -> 1 : 0)
#else
#define LANE(ev) 0
#endif

/* parked[].due: a wait that may end at any time is one that may have ended already. */
#define BEHIND 0 /* NULL in the table: waits for the one before it */
#define NOW 1

/* live[].what */
#define NOT_IN_BATCH 0
#define UNTRIED 1
#define FLYING 2
#define DELIVERED 3
#define RETRY 4
#define DEAD 5
#define HELD 6 /* OUTCOME_BEHIND */
#define RELEASED 7

typedef a_claim { bit used; bit expired; bit parked; bit lane; byte owner; byte from; byte to };
typedef a_row { bit there; bit careful; bit due; byte attempts; byte claim };
typedef a_live { byte epoch; bit parked; bit careful; byte what[N + 1]; byte attempts[N + 1] };
typedef a_relay { bit leaving; a_live live[CLAIMS] };

/* The store. */
byte head = 2, trimmed; /* the first two events are there, the third may come at any time */
byte position[LANES];
a_claim claim[EPOCHS + 1];
a_row parked[N + 1];
bool dead[N + 1];

a_relay relay[2];
byte crashes = CRASHES, stops = STOPS, lost_replies = LOST_REPLIES;
#ifdef BUGS
bit goes_on[2];
#define GOES_ON(r) goes_on[r]
#else
#define GOES_ON(r) WRONG(BUG_LOST_GOES_ON)
#endif

/* What really happened, for the assertions alone. */
bool arrived[N + 1]; /* the sink has it */
bool done[N + 1];    /* settled as delivered */

#define L(k) relay[r].live[k]
#if CLAIMS == 2
#define KNOWN(e) (L(0).epoch == e || L(1).epoch == e)
#else
#define KNOWN(e) (L(0).epoch == e)
#endif
#define ENDED(ev) (done[ev] || dead[ev])
#define ALL_ENDED (head == N && ENDED(1) && ENDED(2) && ENDED(3))
#define IN_RANGE(c, ev) (ev > claim[c].from && ev <= claim[c].to && LANE(ev) == claim[c].lane)
#define HAS(c, ev) (claim[c].used && (claim[c].parked -> (parked[ev].there && parked[ev].claim == c) : IN_RANGE(c, ev)))
#define FRESH_CLAIM(c) (claim[c].used && !claim[c].parked)
#define LIVES(c) (claim[c].used && !claim[c].expired)
#define PARKED_LIKE(e, ev) (parked[e].there && SAME(e, ev))
#define EARLIER_PARKED(ev) ((ev > 1 && PARKED_LIKE(1, ev)) || (ev > 2 && PARKED_LIKE(2, ev)))
#define ANY_PARKED (parked[1].there || parked[2].there || parked[3].there)

/* No claim that lives, other than c, has the event. */
#define NOT_WITH(e, c, ev) (c == e || !HAS(e, ev) || claim[e].expired)
#define NOBODY_ELSE(c, ev) (NOT_WITH(1, c, ev) && NOT_WITH(2, c, ev) && NOT_WITH(3, c, ev) && NOT_WITH(4, c, ev) && \
                            NOT_WITH(5, c, ev) && NOT_WITH(6, c, ev))

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
#define WAITS_FIRST(ev) (parked[ev].there && !EARLIER_PARKED(ev) && !parked[ev].claim && parked[ev].due == BEHIND)
inline promote()
{
    if
    :: WAITS_FIRST(1) && !WRONG(BUG_NO_PROMOTE) -> parked[1].due = NOW
    :: else
    fi;
    if
    :: WAITS_FIRST(2) && !WRONG(BUG_NO_PROMOTE) -> parked[2].due = NOW
    :: else
    fi;
    if
    :: WAITS_FIRST(3) && !WRONG(BUG_NO_PROMOTE) -> parked[3].due = NOW
    :: else
    fi
}

inline bury(ev)
{
    dead[ev] = true;
    if
    :: WRONG(BUG_DEAD_STAYS) -> parked[ev].claim = 0
    :: else -> forget(ev)
    fi
}

/* ---- taking over ---- */

#define POISON(ev) (parked[ev].careful && parked[ev].attempts >= ATTEMPTS && !WRONG(BUG_POISON_LIVES))

inline forget_claim(e)
{
    claim[e].used = 0;
    claim[e].expired = 0;
    claim[e].parked = 0;
    claim[e].lane = 0;
    claim[e].owner = 0;
    claim[e].from = 0;
    claim[e].to = 0
}

inline dissolve(c)
{
    i = 1;
    do
    :: i > N -> break
    :: i <= N ->
        if
        :: HAS(c, i) && claim[c].parked && POISON(i) ->
            bury(i);
            promote()
        :: HAS(c, i) && claim[c].parked && !POISON(i) ->
            parked[i].claim = 0;
            parked[i].careful = !WRONG(BUG_NOT_CAREFUL)
        :: HAS(c, i) && !claim[c].parked && !(WRONG(BUG_RANGE_EDGE) && i == claim[c].to) && !WRONG(BUG_FORGETS_CLAIM) ->
            assert(i > trimmed); /* it is read again */
            park(i, 0, NOW, !WRONG(BUG_NOT_CAREFUL))
        :: else
        fi;
        /* What was in flight when its worker vanished comes carefully. */
        assert(!IN_RANGE(c, i) || claim[c].parked || !parked[i].there || parked[i].claim || parked[i].careful);
        i++
    od;
    forget_claim(c)
}

/* What the relay has in hand itself (KNOWN) it may still settle, however late. With an order to keep, not before the earlier
 * claims of the lane are over, too. */
#define BEFORE(e, c) (FRESH_CLAIM(e) && claim[e].lane == claim[c].lane && claim[e].from < claim[c].from && \
                      (!claim[e].expired || KNOWN(e)))
#define EARLIER_LIVES(c) (BEFORE(1, c) || BEFORE(2, c) || BEFORE(3, c) || BEFORE(4, c) || BEFORE(5, c) || BEFORE(6, c))
#if ORDER == NO_ORDER
#define MUST_WAIT(c) false
#else
#define MUST_WAIT(c) (!claim[c].parked && EARLIER_LIVES(c) && !WRONG(BUG_OVERTAKES))
#endif
#define MAY_TAKE(c) (claim[c].used && claim[c].expired && !KNOWN(c) && !MUST_WAIT(c))

inline take_over()
{
    c = 1;
    do
    :: c > EPOCHS -> break
    :: c <= EPOCHS ->
        if
        :: MAY_TAKE(c) || (WRONG(BUG_STEAL) && claim[c].used && claim[c].owner != r) ->
            assert(claim[c].expired); /* a live one is never stolen */
            dissolve(c)
        :: else
        fi;
        c++
    od
}

/* ---- settling ---- */

inline apply(ev, k)
{
    if
    :: L(k).what[ev] == DELIVERED ->
        assert(arrived[ev]); /* nothing counts as delivered that was not */
        done[ev] = true
    :: L(k).what[ev] == RETRY ->
        if
        :: WRONG(BUG_LOST_RETRY) -> skip
        :: WRONG(BUG_NOT_COUNTED) -> park(ev, L(k).attempts[ev], NOW, 0)
        :: else -> park(ev, L(k).attempts[ev] + 1, NOW, 0)
        fi
    :: L(k).what[ev] == DEAD -> bury(ev)
    :: L(k).what[ev] == HELD ->
        if
        :: L(k).parked -> parked[ev].claim = 0; parked[ev].attempts = L(k).attempts[ev]
        :: else -> park(ev, L(k).attempts[ev], NOW, 0)
        fi
    :: else
    fi
}

/* release: the end of a range is given back by moving the position, if nothing was handed out behind it; else it is parked. */
#define BEHIND_IT(e, c) (FRESH_CLAIM(e) && claim[e].lane == claim[c].lane && claim[e].from >= claim[c].to)
#if ORDER == NO_ORDER
#define IS_LAST(c) (position[claim[c].lane] == claim[c].to)
#else
#define IS_LAST(c) (!BEHIND_IT(1, c) && !BEHIND_IT(2, c) && !BEHIND_IT(3, c) && !BEHIND_IT(4, c) && !BEHIND_IT(5, c) && \
                    !BEHIND_IT(6, c))
#endif
inline release(k)
{
    i = 1;
    do
    :: i > N || L(k).what[i] == RELEASED -> break
    :: else -> i++
    od;
    if
    :: i <= N && IS_LAST(c) -> position[claim[c].lane] = i - 1 + WRONG(BUG_RELEASE_EDGE)
    :: i <= N && !IS_LAST(c) ->
        do
        :: i > N -> break
        :: i <= N ->
            if
            :: L(k).what[i] == RELEASED -> park(i, L(k).attempts[i], NOW, 0)
            :: else
            fi;
            i++
        od
    :: else
    fi
}

#define FENCED(k) (claim[c].used && claim[c].owner == r + 1) /* however late: nobody has taken it over */

inline settle(k)
{
    c = L(k).epoch;
    if
    :: FENCED(k) || WRONG(BUG_NO_FENCE) ->
        assert(claim[c].used); /* what was taken over changes nothing */
        i = 1;
        do
        :: i > N -> break
        :: i <= N -> apply(i, k); i++
        od;
        release(k);
        i = 1;
        do
        :: i > N -> break
        :: i <= N ->
            if
            :: L(k).parked && parked[i].there && parked[i].claim == c -> forget(i)
            :: else
            fi;
            /* Everything in the claim is accounted for. */
            assert(L(k).what[i] == NOT_IN_BATCH || ENDED(i) || parked[i].there || i > position[LANE(i)]);
            i++
        od;
        promote();
        forget_claim(c)
    :: else
    fi
}

#define HOLDS(ev, k) ((L(k).what[ev] == RETRY || L(k).what[ev] == HELD || (L(k).what[ev] == DEAD && !WRONG(BUG_DEAD_FREES))) && \
                      !WRONG(BUG_FOLLOWER_GOES))

inline clear(k)
{
    L(k).epoch = 0;
    L(k).parked = 0;
    L(k).careful = 0;
    i = 1;
    do
    :: i > N -> break
    :: i <= N -> L(k).what[i] = NOT_IN_BATCH; L(k).attempts[i] = 0; i++
    od
}

/* drop forgets a claim, the first or (CLAIMS == 2) the second. What waits in the second for one that was not delivered is held
 * back; then the second becomes the first. */
#if CLAIMS == 2
#define STOPS_NEXT(ev) (HOLDS(ev, 0) || L(0).what[ev] == UNTRIED || L(0).what[ev] == RELEASED)
inline drop(k)
{
    if
    :: k == 0 && L(1).epoch ->
        i = 2;
        do
        :: i > N -> break
        :: i <= N ->
            if
            :: L(1).what[i] == UNTRIED && ((SAME(1, i) && STOPS_NEXT(1)) || (i > 2 && SAME(2, i) && STOPS_NEXT(2))) ->
                L(1).what[i] = HELD
            :: else
            fi;
            i++
        od;
        i = 0;
        do
        :: i > N -> break
        :: i <= N -> L(0).what[i] = L(1).what[i]; L(0).attempts[i] = L(1).attempts[i]; i++
        od;
        L(0).epoch = L(1).epoch;
        L(0).parked = L(1).parked;
        L(0).careful = L(1).careful;
        clear(1)
    :: k == 0 && !L(1).epoch -> clear(0); relay[r].leaving = 0
    :: k == 1 -> clear(1)
    fi
}
#define SECOND_EPOCH(e) (relay[0].live[1].epoch == e || relay[1].live[1].epoch == e)
#else
inline drop(k)
{
    clear(0);
    relay[r].leaving = 0
}
#define SECOND_EPOCH(e) false
#endif

/* ---- claiming ---- */

#define IN_USE(e) (claim[e].used || (!WRONG(BUG_EPOCH_AGAIN) && \
                   (relay[0].live[0].epoch == e || relay[1].live[0].epoch == e || SECOND_EPOCH(e) || was == e)))
#define TRUSTED(e) (KNOWN(e) || (WRONG(BUG_UNKNOWN_CLAIM) && claim[e].owner == r + 1))
#define BLOCKS(e, l) (FRESH_CLAIM(e) && claim[e].lane == l && !(LIVES(e) && TRUSTED(e)))
#define NO_BLOCK(l) (!BLOCKS(1, l) && !BLOCKS(2, l) && !BLOCKS(3, l) && !BLOCKS(4, l) && !BLOCKS(5, l) && !BLOCKS(6, l))
#if ORDER == BY_KEY
#define LANE_FREE(l) (NO_BLOCK(l) || WRONG(BUG_LANE_SHARED))
#define KEY_PARKED(ev) ((PARKED_LIKE(1, ev) || PARKED_LIKE(2, ev) || PARKED_LIKE(3, ev)) && !WRONG(BUG_NO_BEHIND))
#endif
#if ORDER == IN_ALL
#define LANE_FREE(l) ((NO_BLOCK(l) && !ANY_PARKED) || WRONG(BUG_LANE_SHARED))
#define KEY_PARKED(ev) false
#endif
#if ORDER == NO_ORDER
#define LANE_FREE(l) true
#define KEY_PARKED(ev) false
#endif
#define IS_HEAD(ev) (parked[ev].there && !parked[ev].claim && parked[ev].due == NOW && !EARLIER_PARKED(ev))
#define MAY_TAKE_ANY (MAY_TAKE(1) || MAY_TAKE(2) || MAY_TAKE(3) || MAY_TAKE(4) || MAY_TAKE(5) || MAY_TAKE(6))
#define FRESH(l) (LANE_FREE(l) && position[l] < head)
#if LANES == 2
#define MAY_CLAIM (FRESH(0) || FRESH(1) || IS_HEAD(1) || IS_HEAD(2) || IS_HEAD(3))
#else
#define MAY_CLAIM (FRESH(0) || IS_HEAD(1) || IS_HEAD(2) || IS_HEAD(3))
#endif

inline new_epoch(k, is_parked)
{
    c = 1;
    do
    :: c <= EPOCHS && IN_USE(c) -> c++
    :: else -> break
    od;
    assert(c <= EPOCHS); /* of the model: give it more names */
    L(k).epoch = c;
    L(k).parked = is_parked;
    if
    :: WRONG(BUG_NO_CLAIM) && !is_parked -> skip
    :: else ->
        claim[c].used = 1;
        claim[c].parked = is_parked;
        claim[c].owner = r + 1
    fi
}

inline take_parked(ev, k)
{
    assert(ev > trimmed);      /* retention has not taken it */
    assert(NOBODY_ELSE(0, ev));
    assert(!ENDED(ev));        /* what is settled does not come again */
    assert(parked[ev].attempts < ATTEMPTS); /* nor what has used up its attempts */
    parked[ev].claim = L(k).epoch;
    L(k).what[ev] = UNTRIED;
    L(k).attempts[ev] = parked[ev].attempts;
    L(k).careful = parked[ev].careful;
    parked[ev].attempts = parked[ev].attempts + parked[ev].careful
}

/* What waits behind it comes along. */
#define COMES_ALONG(ev, e) (parked[e].there && SAME(ev, e) && !parked[e].careful && !parked[e].claim && parked[e].due == BEHIND)
inline claim_parked(ev, k)
{
    new_epoch(k, 1);
    take_parked(ev, k);
    if
    :: !L(k).careful && ev < 2 && COMES_ALONG(ev, 2) -> take_parked(2, k)
    :: else
    fi;
    if
    :: !L(k).careful && ev < 3 && COMES_ALONG(ev, 3) && (ev == 2 || !PARKED_LIKE(2, 3) || L(k).what[2] == UNTRIED) ->
        take_parked(3, k)
    :: else
    fi
}

/* A claim of a lane: what it has of it between its position and the end. Without any, the position moves all the same. */
#define LANE_HAS(l, ev) (LANE(ev) == l && ev > position[l] && ev <= head)
inline claim_fresh(l, k)
{
    if
    :: LANE_HAS(l, 1) || LANE_HAS(l, 2) || LANE_HAS(l, 3) ->
        new_epoch(k, 0);
        if
        :: WRONG(BUG_STALE_READ) -> i = 0
        :: else -> i = position[l]
        fi;
        if
        :: claim[c].used -> claim[c].lane = l; claim[c].from = i; claim[c].to = head
        :: else
        fi;
        if
        :: WRONG(BUG_SKIPS) -> i = i + 2
        :: else -> i++
        fi;
        do
        :: i > head -> break
        :: i <= head ->
            if
            :: LANE(i) == l ->
                assert(i > trimmed);
                assert(NOBODY_ELSE(c, i));
                assert(!ENDED(i));
                L(k).what[i] = (KEY_PARKED(i) -> HELD : UNTRIED)
            :: else
            fi;
            i++
        od
    :: else
    fi;
    position[l] = head + WRONG(BUG_WINDOW_EDGE)
}

/* Beside another claim no careful event is taken: it waits until it can be alone. */
#define MAY_HAVE(ev, k) (IS_HEAD(ev) && (k == 0 || !parked[ev].careful))
inline claim_next(k)
{
    if
    :: MAY_HAVE(1, k) -> claim_parked(1, k)
    :: MAY_HAVE(2, k) -> claim_parked(2, k)
    :: MAY_HAVE(3, k) -> claim_parked(3, k)
    :: FRESH(0) -> claim_fresh(0, k)
#if LANES == 2
    :: FRESH(1) -> claim_fresh(1, k)
#endif
    :: else -> skip
    fi
}

/* ---- a relay ---- */

#define OPEN(ev, k) (L(k).what[ev] == UNTRIED || L(k).what[ev] == FLYING)
#define FINISHED(k) (L(k).epoch && !OPEN(1, k) && !OPEN(2, k) && !OPEN(3, k))
#define LEASE_ALLOWS(k) (LIVES(L(k).epoch) || WRONG(BUG_LATE_SUBMIT) || GOES_ON(r))
#define FLIES(k) (L(k).what[1] == FLYING || L(k).what[2] == FLYING || L(k).what[3] == FLYING)
/* One after the other: what flies beside it in its claim has another key, and is of no account to it. */
#define IN_TURN(ev, k) (!FLIES(k) && (ev == 1 || !OPEN(1, k)) && (ev != 3 || !OPEN(2, k)))
#if CLAIMS == 2
#define FIRST_OPEN(e, ev) (e < ev && SAME(e, ev) && OPEN(e, 0))
#define WAITS_FOR_FIRST(ev, k) (k == 1 && (FIRST_OPEN(1, ev) || FIRST_OPEN(2, ev)))
#define FIRST_HOLDS(ev, k) (k == 1 && ((ev > 1 && SAME(1, ev) && HOLDS(1, 0)) || (ev > 2 && SAME(2, ev) && HOLDS(2, 0))))
#define BESIDE(k) (FLIES(1 - k) && (L(0).careful || L(1).careful))
#else
#define WAITS_FOR_FIRST(ev, k) false
#define FIRST_HOLDS(ev, k) false
#define BESIDE(k) false
#endif
#define MAY_FLY(ev, k) (L(k).what[ev] == UNTRIED && LEASE_ALLOWS(k) && !relay[r].leaving && IN_TURN(ev, k) && \
                        !WAITS_FOR_FIRST(ev, k))
#define HELD_BACK(ev, k) ((ev > 1 && SAME(1, ev) && HOLDS(1, k)) || (ev > 2 && SAME(2, ev) && HOLDS(2, k)) || FIRST_HOLDS(ev, k))

/* submit: the order of a key, and that nobody else is at it. */
#define PASSED(e, ev) (!SAME(e, ev) || arrived[e] || dead[e])
inline submit(ev, k)
{
    assert(NOBODY_ELSE(L(k).epoch, ev));
    if
    :: HELD_BACK(ev, k) -> L(k).what[ev] = HELD
    :: else ->
        assert((ev < 2 || PASSED(1, ev)) && (ev < 3 || PASSED(2, ev)));  /* what came first goes first */
        assert(arrived[ev] || ((ev > 1 || !SAME(1, 2) || !arrived[2]) && (ev > 1 || !SAME(1, 3) || !arrived[3]) &&
                               (ev != 2 || !SAME(2, 3) || !arrived[3])));
        assert(!BESIDE(k)); /* a careful one is alone */
        L(k).what[ev] = FLYING;
        if
        :: WRONG(BUG_SETTLE_FIRST) ->
            L(k).what[ev] = DELIVERED;
            settle(k)
        :: else
        fi
    fi
}

#define AFTER_FAILURE(ev, k) (L(k).attempts[ev] + 1 >= ATTEMPTS -> DEAD : (WRONG(BUG_FAILURE_DELIVERED) -> DELIVERED : RETRY))
inline answer(ev, k)
{
    if
    :: arrived[ev] = true; L(k).what[ev] = DELIVERED
    :: ev != 2 -> arrived[ev] = true; L(k).what[ev] = AFTER_FAILURE(ev, k)
    :: ev != 2 -> L(k).what[ev] = AFTER_FAILURE(ev, k)
    :: ev != 2 -> L(k).what[ev] = DEAD
    fi
}

/* give_up: a relay that is told to stop gives back what it has not tried: the end of a fresh range by moving the position,
 * the rest as held. */
inline give_up(k)
{
    i = N;
    do /* the untried run at the end */
    :: i >= 1 && !L(k).parked && L(k).what[i] == UNTRIED -> L(k).what[i] = RELEASED; i--
    :: i >= 1 && L(k).what[i] == NOT_IN_BATCH -> i--
    :: else -> break
    od;
    do
    :: i >= 1 -> L(k).what[i] = (L(k).what[i] == UNTRIED -> HELD : L(k).what[i]); i--
    :: else -> break
    od
}

/* extend: past its deadline a relay asks, and hears that the claim is lost; it lets go once nothing is on its way. */
#define LOST(k) (L(k).epoch && !LIVES(L(k).epoch) && !FLIES(k) && !GOES_ON(r))
inline extend(k)
{
    c = L(k).epoch;
    if
    :: WRONG(BUG_LOST_GOES_ON) ->
#ifdef BUGS
        goes_on[r] = 1
#else
        skip
#endif
    :: else -> drop(k)
    fi
}

/* Retention deletes an event that is old enough and that nobody needs: below the floor, which is the least of the positions,
 * the starts of claims, and what is parked. */
#define RANGE(e, ev) (FRESH_CLAIM(e) && ev > claim[e].from && !WRONG(BUG_TRIM_CLAIMED))
#define IN_RANGES(ev) (RANGE(1, ev) || RANGE(2, ev) || RANGE(3, ev) || RANGE(4, ev) || RANGE(5, ev) || RANGE(6, ev))
#define HOLDS_FLOOR(ev) (((parked[1].there && ev >= 1) || (parked[2].there && ev >= 2) || (parked[3].there && ev >= 3)) && \
                         !WRONG(BUG_TRIM_PARKED))
#if LANES == 2
#define FLOOR (position[0] < position[1] -> position[0] : position[1])
#else
#define FLOOR position[0]
#endif
#define NEEDED(ev) (ev > FLOOR + WRONG(BUG_TRIM_EDGE) || IN_RANGES(ev) || HOLDS_FLOOR(ev))

inline trim()
{
    do
    :: trimmed < N && !NEEDED(trimmed + 1) -> trimmed++; assert(ENDED(trimmed))
    :: else -> break
    od
}

/* turn: take over, settle the first claim if it is finished, claim into slot k: one transaction. Its answer may be lost: then
 * the relay settles again, and finds its claim gone; of the new one it knows nothing. */
inline claim_into(k)
{
    if
    :: lost_replies > 0 && UNLUCKY && MAY_CLAIM ->
        lost_replies--;
        claim_next(k);
        clear(k);
        if
        :: was && k == 0 -> L(0).epoch = was /* it still has what it settled, and nothing to say about it */
        :: else
        fi
    :: claim_next(k)
    fi
}

inline turn(settles)
{
    take_over();
    was = 0;
    was_leaving = relay[r].leaving;
    if
    :: settles ->
        settle(0);
        was = (lost_replies > 0 -> L(0).epoch : 0);
        drop(0)
    :: else
    fi;
#if CLAIMS == 2
    if
    :: was_leaving || L(1).epoch -> skip
    :: !was_leaving && L(0).epoch && !L(1).epoch -> was = 0; claim_into(1)
    :: !was_leaving && !L(0).epoch -> claim_into(0)
    fi
#else
    if
    :: was_leaving -> skip
    :: else -> claim_into(0)
    fi
#endif
}

#define TIDY i = 0; c = 0; was = 0; was_leaving = 0

proctype Relay(byte r)
{
    byte i, c, was;
    bit was_leaving;
    do
    :: atomic { FINISHED(0) -> turn(true); trim(); TIDY }
    :: atomic { !L(0).epoch && (MAY_TAKE_ANY || MAY_CLAIM) -> turn(false); trim(); TIDY }
    /* A settlement of its own, as handlers' effects are committed with: nothing is taken over or claimed with it. */
    :: atomic { FINISHED(0) -> settle(0); drop(0); trim(); TIDY }
    :: atomic { MAY_FLY(1, 0) -> submit(1, 0); TIDY }
    :: atomic { MAY_FLY(2, 0) -> submit(2, 0); TIDY }
    :: atomic { MAY_FLY(3, 0) -> submit(3, 0); TIDY }
    :: atomic { L(0).what[1] == FLYING -> answer(1, 0) }
    :: atomic { L(0).what[2] == FLYING -> answer(2, 0) }
    :: atomic { L(0).what[3] == FLYING -> answer(3, 0) }
    :: atomic { LOST(0) -> extend(0); TIDY }
#if CLAIMS == 2
    /* While the first is with the sink, another may be claimed, unless it is a careful one. */
    :: atomic { L(0).epoch && !L(1).epoch && FLIES(0) && !relay[r].leaving && (!L(0).careful || WRONG(BUG_CAREFUL_BESIDE)) &&
                (FRESH(0) || MAY_HAVE(1, 1) || MAY_HAVE(2, 1) || MAY_HAVE(3, 1)) -> turn(false); trim(); TIDY }
    :: atomic { MAY_FLY(1, 1) -> submit(1, 1); TIDY }
    :: atomic { MAY_FLY(2, 1) -> submit(2, 1); TIDY }
    :: atomic { MAY_FLY(3, 1) -> submit(3, 1); TIDY }
    :: atomic { L(1).what[1] == FLYING -> answer(1, 1) }
    :: atomic { L(1).what[2] == FLYING -> answer(2, 1) }
    :: atomic { L(1).what[3] == FLYING -> answer(3, 1) }
    :: atomic { LOST(1) -> extend(1); TIDY }
    :: atomic { WRONG(BUG_SETTLES_LATER_FIRST) && FINISHED(1) -> settle(1); drop(1); trim(); TIDY }
#endif
    :: atomic { stops > 0 && UNLUCKY && L(0).epoch && !relay[r].leaving && !FINISHED(0) ->
        stops--;
        relay[r].leaving = 1;
        give_up(0);
#if CLAIMS == 2
        if
        :: L(1).epoch -> give_up(1)
        :: else
        fi;
#endif
        TIDY }
    :: atomic { crashes > 0 && UNLUCKY && L(0).epoch ->
        crashes--;
#if CLAIMS == 2
        clear(1);
#endif
        clear(0);
        relay[r].leaving = 0;
        TIDY }
    :: atomic { ALL_ENDED && !L(0).epoch -> break }
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
    :: atomic { LIVES(1) -> claim[1].expired = 1 }
    :: atomic { LIVES(2) -> claim[2].expired = 1 }
    :: atomic { LIVES(3) -> claim[3].expired = 1 }
    :: atomic { LIVES(4) -> claim[4].expired = 1 }
    :: atomic { LIVES(5) -> claim[5].expired = 1 }
    :: atomic { LIVES(6) -> claim[6].expired = 1 }
    :: ALL_ENDED -> break
    od
}

init
{
    atomic {
#ifdef BUGS
        c_code {
            now.bug = getenv("BUG") ? atoi(getenv("BUG")) : 0;
            if (getenv("STOPS")) now.stops = atoi(getenv("STOPS"));
            if (getenv("LOST_REPLIES")) now.lost_replies = atoi(getenv("LOST_REPLIES"));
        };
#endif
        run Producer();
        run Clock();
        run Relay(0);
        run Relay(1)
    }
}

#ifdef LIVENESS
ltl ends { <> ALL_ENDED }
#endif
