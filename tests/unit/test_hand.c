#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/hand.h"

#define EVENTS 3

static const struct consumer one_lane = {.batch = 10, .lanes = 1, .order = ORDER_KEY};

/* take puts a fresh batch of EVENTS events in hand, each with a key of its own, after position
 * `from`. */
static struct live *take(struct hand *h, int64_t from)
{
    struct live *l = hand_spare(h);
    assert_non_null(l);
    struct event *ev = arena_zalloc(&l->a, EVENTS, sizeof *ev);
    for (int i = 0; i < EVENTS; i++)
        ev[i] = (struct event){.seq = from + 1 + i, .key = (uint64_t)(from + 1 + i)};
    l->b = (struct batch){.from = from, .to = from + EVENTS, .ev = ev, .n = EVENTS};
    assert_int_equal(hand_take(h, l, true), 0);
    return l;
}

static size_t queued(const struct hand *h)
{
    size_t n = 0;
    for (const struct item *it = h->ready.head; it; it = it->next_ready)
        n++;
    return n;
}

static struct item *fly(struct hand *h)
{
    struct item *it = ready_pop(&h->ready);
    live_item_fly(it);
    return it;
}

static int set_up(void **state)
{
    static struct hand hand;
    *state = &hand;
    return hand_init(&hand, &one_lane);
}

static int tear_down(void **state)
{
    hand_release(*state);
    return 0;
}

static void takes_four_batches_and_no_fifth(void **state)
{
    struct hand *h = *state;
    for (int i = 0; i < HAND_MAX; i++)
        take(h, i * EVENTS);
    assert_null(hand_spare(h));
    assert_int_equal(queued(h), HAND_MAX * EVENTS);
    hand_drop(h, 0);
    assert_non_null(hand_spare(h));
    assert_int_equal(h->live[0]->b.from, EVENTS);
}

static void what_came_back_goes_before_what_was_claimed_after_it(void **state)
{
    struct hand *h = *state;
    take(h, 0);
    take(h, 10);
    struct item *first = fly(h);
    assert_int_equal(hand_flying(h), 1);
    live_item_land(first, &h->ready);
    hand_disturb(h);
    assert_true(hand_untidy(h));
    hand_tidy(h);
    assert_false(hand_untidy(h));
    assert_ptr_equal(h->ready.head, first);
    assert_int_equal(queued(h), 2 * EVENTS);
    assert_int_equal(hand_flying(h), 0);
}

static void what_others_shall_have_is_not_queued_again(void **state)
{
    struct hand *h = *state;
    take(h, 0);
    live_item_land(fly(h), &h->ready);
    hand_want_back(h);
    hand_disturb(h); /* one more of those in flight: the wish stands */
    hand_tidy(h);
    assert_int_equal(queued(h), 0);
    assert_int_equal(h->live[0]->open, 0);
    assert_int_equal(h->live[0]->release_from, 1);
    assert_true(h->gave_back);
    hand_drop(h, 0);
    assert_false(h->gave_back);
}

static void what_is_with_the_sink_is_not_given_back(void **state)
{
    struct hand *h = *state;
    take(h, 0);
    fly(h);
    hand_give_back(h);
    assert_int_equal(h->live[0]->open, 1);
    assert_int_equal(h->live[0]->release_from, 2);
}

static void newest_is_settled_first_if_nothing_of_it_was_tried(void **state)
{
    struct hand *h = *state;
    take(h, 0);
    take(h, 10);
    fly(h);
    assert_int_equal(hand_next(h), 0);
    hand_give_back(h);
    assert_int_equal(hand_next(h), 1);
    hand_forgot(h);
    assert_int_equal(hand_next(h), 0);
}

static void fresh_batch_of_the_only_lane_shows_that_no_claim_is_unknown(void **state)
{
    struct hand *h = *state;
    hand_forgot(h);
    take(h, 0);
    assert_false(h->forgot);
}

static void lost_batch_is_not_queued(void **state)
{
    struct hand *h = *state;
    struct live *lost = take(h, 0);
    take(h, 10);
    hand_lose(h, lost);
    assert_true(h->forgot);
    assert_int_equal(queued(h), EVENTS);
    assert_int_equal(lost->open, 0);
}

static void batch_that_starts_over_is_queued_whole(void **state)
{
    struct hand *h = *state;
    struct live *l = take(h, 0);
    live_item_end(fly(h), &(struct outcome){.kind = OUTCOME_DELIVERED}, false, &h->ready);
    assert_int_equal(l->open, EVENTS - 1);
    hand_again(h, l);
    assert_int_equal(l->open, EVENTS);
    assert_int_equal(queued(h), EVENTS);
}

#define CLAIM(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIM(takes_four_batches_and_no_fifth),
        CLAIM(what_came_back_goes_before_what_was_claimed_after_it),
        CLAIM(what_others_shall_have_is_not_queued_again),
        CLAIM(what_is_with_the_sink_is_not_given_back),
        CLAIM(newest_is_settled_first_if_nothing_of_it_was_tried),
        CLAIM(fresh_batch_of_the_only_lane_shows_that_no_claim_is_unknown),
        CLAIM(lost_batch_is_not_queued),
        CLAIM(batch_that_starts_over_is_queued_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
