#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/inflight.h"

#define EVENTS 3

static const struct consumer one_lane = {.batch = 10, .lanes = 1, .order = ORDER_KEY};

/* Adds a fresh batch of EVENTS events after position `from`, each with its own key. */
static struct batch_state *take(struct inflight *f, int64_t from)
{
    struct batch_state *b = inflight_spare(f);
    assert_non_null(b);
    struct event *ev = arena_zalloc(&b->a, EVENTS, sizeof *ev);
    for (int i = 0; i < EVENTS; i++)
        ev[i] = (struct event){.seq = from + 1 + i, .key = (uint64_t)(from + 1 + i)};
    b->claim = (struct batch){.from = from, .to = from + EVENTS, .ev = ev, .n = EVENTS};
    assert_int_equal(inflight_add(f, b, true), 0);
    return b;
}

static size_t queued(const struct inflight *f)
{
    size_t n = 0;
    for (const struct slot *slot = f->ready; slot; slot = slot->next_ready)
        n++;
    return n;
}

static struct slot *fly(struct inflight *f)
{
    struct slot *slot = inflight_pop(f);
    inflight_begin(slot);
    return slot;
}

static int set_up(void **state)
{
    static struct inflight inflight;
    *state = &inflight;
    return inflight_init(&inflight, &one_lane);
}

static int tear_down(void **state)
{
    inflight_release(*state);
    return 0;
}

static void at_most_four_batches_are_held(void **state)
{
    struct inflight *f = *state;
    for (int i = 0; i < INFLIGHT_BATCHES; i++)
        take(f, i * EVENTS);
    assert_null(inflight_spare(f));
    assert_int_equal(queued(f), INFLIGHT_BATCHES * EVENTS);
    inflight_drop(f, 0);
    assert_non_null(inflight_spare(f));
    assert_int_equal(f->batch[0]->claim.from, EVENTS);
}

static void returned_events_precede_later_claims(void **state)
{
    struct inflight *f = *state;
    take(f, 0);
    take(f, 10);
    struct slot *first = fly(f);
    assert_int_equal(inflight_deliveries(f), 1);
    inflight_return(f, first);
    assert_int_not_equal(f->queue, QUEUE_READY);
    inflight_tidy(f);
    assert_int_equal(f->queue, QUEUE_READY);
    assert_ptr_equal(f->ready, first);
    assert_int_equal(queued(f), 2 * EVENTS);
    assert_int_equal(inflight_deliveries(f), 0);
}

static void events_released_to_others_are_not_requeued(void **state)
{
    struct inflight *f = *state;
    take(f, 0);
    struct slot *first = fly(f), *second = fly(f);
    inflight_return(f, first);
    inflight_want_back(f);
    inflight_return(f, second); /* another event in flight returns: the request still holds */
    inflight_tidy(f);
    assert_int_equal(queued(f), 0);
    assert_int_equal(f->batch[0]->open, 0);
    assert_int_equal(f->batch[0]->release_from, 1);
    assert_true(f->gave_back);
    inflight_drop(f, 0);
    assert_false(f->gave_back);
}

static void events_at_the_sink_are_not_released(void **state)
{
    struct inflight *f = *state;
    take(f, 0);
    fly(f);
    inflight_give_back(f);
    assert_int_equal(f->batch[0]->open, 1);
    assert_int_equal(f->batch[0]->release_from, 2);
}

static void newest_batch_is_settled_first_if_untried(void **state)
{
    struct inflight *f = *state;
    take(f, 0);
    take(f, 10);
    fly(f);
    assert_int_equal(inflight_next_settled(f), 0);
    inflight_give_back(f);
    assert_int_equal(inflight_next_settled(f), 1);
    inflight_forgot(f);
    assert_int_equal(inflight_next_settled(f), 0);
}

static void new_batch_of_the_only_lane_rules_out_unknown_claims(void **state)
{
    struct inflight *f = *state;
    inflight_forgot(f);
    take(f, 0);
    assert_false(f->forgot);
}

static void lost_batch_is_not_queued(void **state)
{
    struct inflight *f = *state;
    struct batch_state *lost = take(f, 0);
    take(f, 10);
    inflight_lose(f, lost);
    assert_true(f->forgot);
    assert_int_equal(queued(f), EVENTS);
    assert_int_equal(lost->open, 0);
}

static void restarted_batch_is_queued_whole(void **state)
{
    struct inflight *f = *state;
    struct batch_state *b = take(f, 0);
    inflight_end(f, fly(f), &(struct outcome){.kind = OUTCOME_DELIVERED}, false);
    assert_int_equal(b->open, EVENTS - 1);
    inflight_restart(f, b);
    assert_int_equal(b->open, EVENTS);
    assert_int_equal(queued(f), EVENTS);
}

#define CLAIM(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIM(at_most_four_batches_are_held),
        CLAIM(returned_events_precede_later_claims),
        CLAIM(events_released_to_others_are_not_requeued),
        CLAIM(events_at_the_sink_are_not_released),
        CLAIM(newest_batch_is_settled_first_if_untried),
        CLAIM(new_batch_of_the_only_lane_rules_out_unknown_claims),
        CLAIM(lost_batch_is_not_queued),
        CLAIM(restarted_batch_is_queued_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
