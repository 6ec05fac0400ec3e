#include "engine/schedule.h"

#include "base/clock.h"

#define CROWDED_WAIT (50 * MS_NS) /* between looks while another worker has the lane */
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
    s->deaf_until = 0;
}

void schedule_rest(struct schedule *s, int64_t now, int64_t wait, bool crowded)
{
    s->look_at = now + wait;
    s->deaf_until = 0;
    if (!crowded)
        return;

    /* The worker that has the lane rings the bell with every commit, and each look would find the
     * lane taken. */
    s->deaf_until = now + CROWDED_WAIT;
    if (wait < CROWDED_WAIT) {
        s->look_at = s->deaf_until;
    }
}

void schedule_look_by(struct schedule *s, int64_t at)
{
    if (s->look_at > at) {
        s->look_at = at;
    }
}

void schedule_ring(struct schedule *s)
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
    return now >= s->deaf_until;
}

int64_t schedule_look_wake(const struct schedule *s, int64_t now)
{
    bool deaf_first = now < s->deaf_until && s->deaf_until < s->look_at;
    if (deaf_first)
        return s->deaf_until;
    return s->look_at;
}

int64_t schedule_store_failed(struct schedule *s, int64_t now)
{
    s->store_delay *= 2;
    if (s->store_delay < STORE_WAIT_MIN) {
        s->store_delay = STORE_WAIT_MIN;
    }
    if (s->store_delay > STORE_WAIT_MAX) {
        s->store_delay = STORE_WAIT_MAX;
    }
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
    if (deadline < s->drain_by) {
        s->drain_by = deadline;
    }
}

bool schedule_drain_over(const struct schedule *s, int64_t now)
{
    return now >= s->drain_by;
}

int64_t schedule_wake(const struct schedule *s, int64_t now, int64_t at)
{
    if (!schedule_store_away(s, now))
        return at;
    bool waits_for_store = at <= now; /* or it would have been done by now */
    if (waits_for_store || s->store_at < at)
        return s->store_at;
    return at;
}
