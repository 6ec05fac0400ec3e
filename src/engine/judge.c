/* judge.c: whose fault a failure was, and what follows from it for the event. */
#include <stdio.h>

#include "engine/pipeline_impl.h"

/* How a failure is judged. */
struct judgement {
    /* How many attempts it uses up: this one and, if it turned out only now that the event was to
     * blame for the one before, that one too. 0: the sink may be to blame. */
    int attempts;
    bool proven;   /* other events got through, so this one is to blame */
    bool hopeless; /* nobody knows who is to blame, but it has gone on for long enough */
    int64_t failing_ms;
};

/* sink_is_out says whether the sink counts as down, and more than one event says so. */
static bool sink_is_out(const struct pipeline *p)
{
    return evidence_many(&p->evidence) && evidence_down(&p->evidence, pipeline_now(p));
}

/* failing_ms returns how long the event has been failing; 0: this is the first time. */
static int64_t failing_ms(const struct pipeline *p, const struct item *it)
{
    int64_t before = it->d.ev->failing_ms;
    int64_t since_claim = (pipeline_now(p) - it->live->claimed_at) / MS_NS;
    int64_t all;
    if (before == 0)
        return 0;
    if (__builtin_add_overflow(before, since_claim, &all))
        return INT64_MAX;
    return all;
}

/* judge_in_doubt judges an event against which there is no proof, but which cannot be tried for
 * ever. Once it has failed for long enough, it is given up; or, if other events get through now and
 * then but never close enough to prove anything, the attempt counts. While the sink is down beyond
 * doubt, nothing is given up. */
static void judge_in_doubt(const struct pipeline *p, const struct item *it, struct judgement *j)
{
    const struct evidence *e = &p->evidence;
    bool long_enough = j->failing_ms >= p->c->retry.outage_ms && !evidence_certain(e);
    if (!long_enough)
        return;
    j->hopeless = evidence_tried(e, it->sent_at);
    if (!j->hopeless && evidence_between(e, it->sent_at)) {
        j->attempts = 1;
    }
}

/* judge decides whether the event or the sink is to blame for a failure. See evidence.h. */
static struct judgement judge(struct pipeline *p, const struct item *it)
{
    const struct event *ev = it->d.ev;
    struct evidence *e = &p->evidence;
    struct judgement j = {.failing_ms = ev->failing_ms};
    bool every_failure_counts = p->c->retry.outage_ms == 0;
    if (every_failure_counts || it->refused) {
        j.attempts = 1;
        j.proven = ev->proven;
        return j;
    }

    bool guilty_now = evidence_near(e, it->sent_at);
    bool guilty_before = !ev->proven && evidence_late(e, ev->seq);
    bool known = ev->proven || guilty_before;
    bool sink_out = sink_is_out(p);
    j.proven = known || guilty_now;
    if (guilty_now || (known && !sink_out)) {
        j.attempts = 1;
    }
    if (guilty_before && !guilty_now) {
        j.attempts++; /* the one before, which was not counted then */
    }

    j.failing_ms = failing_ms(p, it);
    if (j.attempts == 0)
        judge_in_doubt(p, it, &j);
    return j;
}

/* ---- the consequences ---- */

struct log_about judge_about(const struct event *ev, int attempt, char key[JUDGE_KEY])
{
    key[0] = '\0';
    if (ev->aggregate_id.p)
        snprintf(key, JUDGE_KEY, "%s/%s", ev->aggregate_type.p, ev->aggregate_id.p);
    return (struct log_about){ev->id.p, ev->type.p, key, attempt};
}

void judge_buried(struct pipeline *p, const struct event *ev, int attempts, const char *text,
                  enum burial why)
{
    p->stats.buried++;
    meter_buried(&p->stats.meter, ev->type, why, 1);
    p->stats.stalled_since = p->stats.ended_at;

    char key[JUDGE_KEY];
    struct log_about of = judge_about(ev, attempts, key);
    const char *plural = attempts == 1 ? "" : "s";
    log_about(p->cfg.log, LOG_ERROR_, p->c->name, &of,
              "event %s (%s) is a dead letter after %d attempt%s: %s", ev->id.p, ev->type.p,
              attempts, plural, text);
}

/* say_failed logs that the event failed, whether that counts, and when it is tried again. */
static void say_failed(const struct pipeline *p, const struct item *it, bool counts)
{
    const struct event *ev = it->d.ev;
    const struct outcome *out = &it->out;
    char key[JUDGE_KEY];
    struct log_about of = judge_about(ev, it->d.attempt, key);
    long long next_ms = (long long)out->delay_ms;
    if (!counts) {
        log_about(p->cfg.log, LOG_WARN_, p->c->name, &of,
                  "event %s (%s) failed, and nothing got through after it, so it is not counted: "
                  "%s; next in %lld ms",
                  ev->id.p, ev->type.p, out->error, next_ms);
    } else if (p->c->retry.attempts == RETRY_FOREVER) {
        log_about(
            p->cfg.log, LOG_WARN_, p->c->name, &of,
            "event %s (%s) failed, attempt %d, and is held until it succeeds: %s; next in %lld ms",
            ev->id.p, ev->type.p, out->attempts, out->error, next_ms);
    } else {
        log_about(p->cfg.log, LOG_WARN_, p->c->name, &of,
                  "event %s (%s) failed, attempt %d of %d: %s; next in %lld ms", ev->id.p,
                  ev->type.p, out->attempts, p->c->retry.attempts, out->error, next_ms);
    }
}

/* wait_for_retry puts the next attempt off as the retry policy says, or longer if the sink asked
 * for that. */
static void wait_for_retry(struct pipeline *p, struct item *it, const struct judgement *j)
{
    struct outcome *out = &it->out;
    bool counts = j->attempts > 0;
    int64_t asked_for = out->delay_ms;
    if (counts) {
        out->delay_ms = retry_delay(&p->c->retry, out->attempts, p->cfg.rng);
    } else {
        out->delay_ms = retry_delay_in_doubt(&p->c->retry, j->failing_ms, p->cfg.rng);
    }
    if (out->delay_ms < asked_for) {
        out->delay_ms = asked_for;
    }
    p->stats.retried++;
    say_failed(p, it, counts);
}

/* judge_item turns a failure into a retry or a dead letter. */
static void judge_item(struct pipeline *p, struct item *it)
{
    struct outcome *out = &it->out;
    struct judgement j = judge(p, it);
    it->unjudged = false;
    out->proven = j.proven;
    out->attempts = it->d.ev->attempts + j.attempts;

    bool used_up = j.attempts > 0 && out->attempts >= p->c->retry.attempts;
    bool given_up = j.hopeless && p->c->retry.attempts != RETRY_FOREVER;
    if (!used_up && !given_up) {
        wait_for_retry(p, it, &j);
        return;
    }

    enum burial why = used_up ? BURIAL_ATTEMPTS : BURIAL_OUTAGE;
    out->kind = OUTCOME_DEAD;
    judge_buried(p, it->d.ev, out->attempts, out->error, why);
}

void judge_batch(struct pipeline *p, struct live *l)
{
    if (l->lost || l->exceptions == 0)
        return;
    for (size_t i = 0; i < l->b.n; i++) {
        struct item *it = &l->items[i];
        if (it->unjudged)
            judge_item(p, it);
    }
}
