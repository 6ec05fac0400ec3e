#include "engine/evidence.h"

/* before a sink counts as down; and of each event, before it can be given up without proof */
#define DOWN_FAILURES 3
#define USUAL 512 /* deliveries that count for how many fail usually; the older, the less */

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

static bool is_near(int64_t failed_sent, int64_t passed_sent)
{
    return passed_sent > failed_sent && passed_sent <= failed_sent + EVIDENCE_NEAR;
}

/* in_outage: it was sent while the sink was out, as far as that is over. */
static bool in_outage(const struct evidence *e, int64_t sent_at)
{
    return sent_at >= e->out_from && sent_at < e->out_to;
}

/* surprising is how many failures in a row are too many to be chance, given how many there usually
 * are: 1 in `odds`. */
static size_t surprising(const struct evidence *e, size_t least, double odds)
{
    double usual = e->usual_fails / (e->usual_fails + e->usual_passes + 1.0), chance = 1.0;
    size_t n = 0;
    for (; n < EVIDENCE_FAILING && (n < least || chance > 1.0 / odds); n++)
        chance *= usual;
    return n;
}

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

/* note_outage: something was sent, and gets through again. If that ends an outage, what failed in
 * it is nobody's fault but the sink's, however soon after it the sink was back. */
static void note_outage(struct evidence *e, int64_t sent_at)
{
    bool for_long = fails_for_long(e, sent_at - e->first_sent);
    if (!evidence_certain(e) && !(evidence_many(e) && for_long)) {
        note_usual(e);
        return;
    }
    e->out_from = e->first_sent;
    e->out_to = sent_at;
}

static void convict(struct evidence *e, int64_t sent_at)
{
    for (size_t i = 0; i < EVIDENCE_SUSPECTS; i++) {
        struct evidence_suspect *s = &e->suspect[i];
        if (s->seq && is_near(s->sent_at, sent_at) && !in_outage(e, s->sent_at))
            s->proven = true;
    }
}

void evidence_passed(struct evidence *e, int64_t sent_at)
{
    keep_slot(e, sent_at);
    e->any_passed = true;
    if (e->failures == 0) {
        note_usual(e);
        return;
    }
    bool again = sent_at >= e->first_sent; /* else it was on its way when the sink still worked */
    if (again)
        note_outage(e, sent_at);
    convict(e, sent_at);
    if (!again)
        return;
    e->failing_since = 0;
    e->failures = e->n_failing = 0;
}

/* ---- what failed ---- */

static void add_failing(struct evidence *e, int64_t seq)
{
    for (size_t i = 0; i < e->n_failing; i++)
        if (e->failing[i] == seq)
            return;
    if (e->n_failing < EVIDENCE_FAILING)
        e->failing[e->n_failing++] = seq;
}

static struct evidence_suspect *find_suspect(struct evidence *e, int64_t seq)
{
    for (size_t i = 0; i < EVIDENCE_SUSPECTS; i++)
        if (e->suspect[i].seq == seq)
            return &e->suspect[i];
    return NULL;
}

static void add_suspect(struct evidence *e, int64_t seq, int64_t sent_at)
{
    struct evidence_suspect *s = find_suspect(e, seq);
    if (!s)
        s = &e->suspect[e->next_suspect++ % EVIDENCE_SUSPECTS];
    *s = (struct evidence_suspect){.seq = seq, .sent_at = sent_at};
}

void evidence_failed(struct evidence *e, int64_t seq, int64_t sent_at, int64_t now)
{
    if (e->failures == 0) {
        e->failing_since = now;
        e->first_sent = sent_at;
    }
    e->failures++;
    add_failing(e, seq);
    add_suspect(e, seq, sent_at);
}

/* ---- what follows ---- */

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
    struct evidence_suspect *s = find_suspect(e, seq);
    if (!s || !s->proven)
        return false;
    *s = (struct evidence_suspect){0};
    return true;
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

/* still_open: nothing has got through since it was sent, so that it is among those that fail. */
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
    return still_open(e, sent_at) && e->any_passed && e->failures == e->n_failing;
}
