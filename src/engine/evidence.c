#include "engine/evidence.h"

/* Failures before a sink counts as down, and of each event before it can be given up without proof.
 * */
#define DOWN_FAILURES 3
#define USUAL 512 /* how many deliveries to remember for how many usually fail */

void evidence_init(struct evidence *e)
{
    *e = (struct evidence){0};
}

/* ---- what got through ---- */

static void keep_slot(struct evidence *e, int64_t sent_at)
{
    int64_t number = sent_at / EVIDENCE_SLOT;
    struct evidence_slot *s = &e->slot[number % EVIDENCE_SLOTS];
    if (s->number != number)
        *s = (struct evidence_slot){.number = number, .first = sent_at, .last = sent_at};
    if (sent_at < s->first)
        s->first = sent_at;
    if (sent_at > s->last)
        s->last = sent_at;
}

/* is_near says whether what got through was sent soon after what failed. */
static bool is_near(int64_t failed_sent, int64_t passed_sent)
{
    return passed_sent > failed_sent && passed_sent <= failed_sent + EVIDENCE_NEAR;
}

/* in_outage says whether it was sent during the last outage that is over. */
static bool in_outage(const struct evidence *e, int64_t sent_at)
{
    return sent_at >= e->out_from && sent_at < e->out_to;
}

/* leave_open notes a failure that may yet turn out to be the event's own fault. */
static void leave_open(struct evidence *e, int64_t sent_at)
{
    int64_t until = sent_at + EVIDENCE_NEAR;
    if (e->open_until < until)
        e->open_until = until;
}

/* surprising returns how many failures in a row are too many to be chance (1 in `odds`), given how
 * many deliveries usually fail. */
static size_t surprising(const struct evidence *e, size_t least, double odds)
{
    double usual = e->usual_fails / (e->usual_fails + e->usual_passes + 1.0);
    double chance = 1.0;
    size_t n = 0;
    while (n < EVIDENCE_FAILING) {
        bool likely = chance > 1.0 / odds;
        if (n >= least && !likely)
            break;
        chance *= usual;
        n++;
    }
    return n;
}

/* note_usual counts a success, and the failures before it, as usual. Halving both numbers makes
 * older deliveries count less. */
static void note_usual(struct evidence *e)
{
    e->usual_passes++;
    e->usual_fails += (double)e->failures;
    if (e->usual_passes + e->usual_fails < USUAL)
        return;
    e->usual_passes /= 2;
    e->usual_fails /= 2;
}

static bool fails_for_long(const struct evidence *e, int64_t ns)
{
    return e->failures >= surprising(e, DOWN_FAILURES, 1e3) && ns >= EVIDENCE_PATIENCE;
}

/* note_outage notes the end of a series of failures. If it was an outage, only the sink is to blame
 * for them, however soon after them the sink was back. */
static void note_outage(struct evidence *e, int64_t sent_at)
{
    bool certain = evidence_certain(e);
    bool for_long = fails_for_long(e, sent_at - e->first_sent);
    bool outage = certain || (evidence_many(e) && for_long);
    if (!outage) {
        note_usual(e);
        return;
    }
    e->out_from = e->first_sent;
    e->out_to = sent_at;
    e->out_least = certain ? 0 : EVIDENCE_PATIENCE;
}

/* correct_outage is told of something that got through although it was sent during the outage: its
 * answer came later than that of the one that ended it. The longer part of the outage may still be
 * one. */
static void correct_outage(struct evidence *e, int64_t sent_at)
{
    bool late = sent_at - e->out_from > e->out_to - sent_at;
    if (late)
        e->out_to = sent_at;
    else
        e->out_from = sent_at + 1;
    if (e->out_to - e->out_from >= e->out_least)
        return;
    e->out_from = 0;
    e->out_to = 0;
}

/* convict proves guilty the suspects that were sent shortly before something that got through. */
static void convict(struct evidence *e)
{
    e->open_until = 0;
    for (size_t i = 0; i < EVIDENCE_SUSPECTS; i++) {
        struct evidence_suspect *s = &e->suspect[i];
        if (!s->seq || s->proven)
            continue;
        s->proven = evidence_near(e, s->sent_at);
        if (!s->proven)
            leave_open(e, s->sent_at);
    }
}

void evidence_passed(struct evidence *e, int64_t sent_at)
{
    keep_slot(e, sent_at);
    if (sent_at > e->passed_sent)
        e->passed_sent = sent_at;
    if (in_outage(e, sent_at))
        correct_outage(e, sent_at);

    /* Otherwise it was sent while the sink still worked. */
    bool back = e->failures > 0 && sent_at >= e->first_sent;
    if (back)
        note_outage(e, sent_at);
    else if (e->failures == 0)
        note_usual(e);
    if (sent_at <= e->open_until)
        convict(e);
    if (back) {
        e->failing_since = 0;
        e->failures = 0;
        e->n_failing = 0;
    }
}

/* ---- what failed ---- */

static void add_failing(struct evidence *e, int64_t seq)
{
    for (size_t i = 0; i < e->n_failing; i++) {
        if (e->failing[i] == seq)
            return;
    }
    if (e->n_failing < EVIDENCE_FAILING)
        e->failing[e->n_failing++] = seq;
}

static struct evidence_suspect *find_suspect(struct evidence *e, int64_t seq)
{
    for (size_t i = 0; i < EVIDENCE_SUSPECTS; i++) {
        if (e->suspect[i].seq == seq)
            return &e->suspect[i];
    }
    return NULL;
}

static void add_suspect(struct evidence *e, int64_t seq, int64_t sent_at)
{
    struct evidence_suspect *s = find_suspect(e, seq);
    if (!s)
        s = &e->suspect[e->next_suspect++ % EVIDENCE_SUSPECTS];
    *s = (struct evidence_suspect){.seq = seq, .sent_at = sent_at};
    leave_open(e, sent_at);
}

void evidence_failed(struct evidence *e, int64_t seq, int64_t sent_at, int64_t now)
{
    add_suspect(e, seq, sent_at);
    bool sink_worked_since = sent_at < e->passed_sent;
    if (sink_worked_since) {
        if (!in_outage(e, sent_at))
            e->usual_fails++;
        return;
    }

    if (e->failures == 0) {
        e->failing_since = now;
        e->first_sent = sent_at;
    }
    e->failures++;
    add_failing(e, seq);
}

void evidence_forget(struct evidence *e, int64_t seq)
{
    struct evidence_suspect *s = find_suspect(e, seq);
    if (s)
        *s = (struct evidence_suspect){0};
}

/* ---- conclusions ---- */

bool evidence_near(const struct evidence *e, int64_t sent_at)
{
    int64_t number = sent_at / EVIDENCE_SLOT;
    if (in_outage(e, sent_at))
        return false;
    for (int64_t n = number; n <= number + EVIDENCE_NEAR / EVIDENCE_SLOT; n++) {
        const struct evidence_slot *s = &e->slot[n % EVIDENCE_SLOTS];
        if (s->number != n)
            continue;
        if (is_near(sent_at, s->first) || is_near(sent_at, s->last))
            return true;
    }
    return false;
}

bool evidence_found(struct evidence *e, int64_t seq)
{
    const struct evidence_suspect *s = find_suspect(e, seq);
    return s && s->proven;
}

bool evidence_late(struct evidence *e, int64_t seq)
{
    bool proven = evidence_found(e, seq);
    if (proven)
        evidence_forget(e, seq);
    return proven;
}

bool evidence_certain(const struct evidence *e)
{
    return e->n_failing >= surprising(e, EVIDENCE_CERTAIN, 1e6);
}

bool evidence_many(const struct evidence *e)
{
    return e->n_failing > 1;
}

bool evidence_down(const struct evidence *e, int64_t now)
{
    if (evidence_certain(e))
        return true;
    return fails_for_long(e, now - e->failing_since);
}

/* still_open says whether nothing has got through since sent_at, so that what was sent then is
 * among the failures. */
static bool still_open(const struct evidence *e, int64_t sent_at)
{
    return e->failures > 0 && sent_at >= e->first_sent;
}

bool evidence_tried(const struct evidence *e, int64_t sent_at)
{
    return still_open(e, sent_at) && e->failures >= DOWN_FAILURES * e->n_failing;
}

bool evidence_between(const struct evidence *e, int64_t sent_at)
{
    bool any_passed = e->passed_sent > 0;
    bool passed_since = sent_at < e->passed_sent;
    if (passed_since)
        return !in_outage(e, sent_at);
    return any_passed && still_open(e, sent_at) && e->failures == e->n_failing;
}
