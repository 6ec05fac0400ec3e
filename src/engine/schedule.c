#include "engine/schedule.h"

#include "base/clock.h"

#define TAKEN_WAIT (50 * MS_NS) /* between looks while another worker has the lane */
#define STORE_WAIT_MIN (100 * MS_NS)
#define STORE_WAIT_MAX (5000 * MS_NS)
#define STORE_PAUSE (200 * MS_NS)

void schedule_init(struct schedule *s)
{
    *s = (struct schedule){.drain_by = CLOCK_NEVER};
}

void schedule_look_now(struct schedule *s)
{
    s->look_at = 0;
    s->ignore_until = 0;
}

void schedule_rest(struct schedule *s, int64_t now, int64_t wait, bool lane_taken)
{
    s->look_at = now + wait;
    s->ignore_until = 0;
    if (!lane_taken)
        return;

    /* Every commit of the worker that has the lane is a wake-up, and each look would find the lane
     * taken. */
    s->ignore_until = now + TAKEN_WAIT;
    if (wait < TAKEN_WAIT)
        s->look_at = s->ignore_until;
}

void schedule_woken(struct schedule *s)
{
    schedule_look_now(s);
    s->store_at = 0;
}

bool schedule_look_due(const struct schedule *s, int64_t now)
{
    return now >= s->look_at;
}

bool schedule_listens(const struct schedule *s, int64_t now)
{
    return now >= s->ignore_until;
}

int64_t schedule_look_wake(const struct schedule *s, int64_t now)
{
    bool ignored_first = now < s->ignore_until && s->ignore_until < s->look_at;
    if (ignored_first)
        return s->ignore_until;
    return s->look_at;
}

int64_t schedule_store_failed(struct schedule *s, int64_t now)
{
    s->store_delay *= 2;
    if (s->store_delay < STORE_WAIT_MIN)
        s->store_delay = STORE_WAIT_MIN;
    if (s->store_delay > STORE_WAIT_MAX)
        s->store_delay = STORE_WAIT_MAX;
    s->store_at = now + s->store_delay;
    return s->store_delay;
}

void schedule_store_pause(struct schedule *s, int64_t now)
{
    s->store_at = now + STORE_PAUSE;
}

void schedule_store_back(struct schedule *s)
{
    s->store_at = 0;
    s->store_delay = 0;
}

bool schedule_store_away(const struct schedule *s, int64_t now)
{
    return now < s->store_at;
}

void schedule_drain(struct schedule *s, int64_t deadline)
{
    if (deadline < s->drain_by)
        s->drain_by = deadline;
}

bool schedule_drain_over(const struct schedule *s, int64_t now)
{
    return now >= s->drain_by;
}

int64_t schedule_wake_at(const struct schedule *s, int64_t now, int64_t at)
{
    if (!schedule_store_away(s, now))
        return at;
    bool waits_for_store = at <= now; /* or it would have been done by now */
    if (waits_for_store || s->store_at < at)
        return s->store_at;
    return at;
}
