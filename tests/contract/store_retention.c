/* store_retention.c: what trimming deletes and what it keeps (G10). */
#include "store_impl.h"

static struct trim_result trim(struct store_rig *g, bool dry)
{
    struct error err;
    struct trim_result t;
    must(g->st->ops->trim(g->st, &(struct trim_request){.older_than_ms = 1000, .dry_run = dry}, &t,
                          &err),
         &err);
    return t;
}

/* deliver delivers everything to the consumer, which must be n events. */
static void deliver(struct store_rig *g, const char *consumer, size_t n)
{
    assert_int_equal(claim(g, consumer), n);
    assert_true(settle(g, consumer, NULL, 0));
}

static void trim_deletes_old_events_passed_by_all_consumers(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    deliver(g, "c", 2);
    assert_int_equal(trim(g, false).events, 0);
    pass(500);
    emit(g->st, "3");
    assert_int_equal(trim(g, false).events, 0);
    pass(600);
    assert_int_equal(trim(g, true).events, 2);
    assert_int_equal(trim(g, false).events, 2);
    assert_int_equal(trim(g, false).events, 0);
    assert_int_equal(claim(g, "c"), 1);
}

/* Retention is 1000 ms in these tests. Only trimming notices that a consumer has passed an event.
 * */
static void event_delivered_late_is_kept_for_the_retention(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    for (int i = 0; i < 8; i++) { /* an outage that is eight times the retention time */
        assert_int_equal(trim(g, false).events, 0);
        pass(1000);
    }
    deliver(g, "c", 1);
    assert_int_equal(trim(g, true).events, 0);
    assert_int_equal(trim(g, false).events, 0);
    pass(999);
    assert_int_equal(trim(g, true).events, 0);
    assert_int_equal(trim(g, false).events, 0);
    assert_int_equal(trim(g, false).kept_for_pin, 0);
    pass(1);
    assert_int_equal(trim(g, true).events, 1);
    assert_int_equal(trim(g, false).events, 1);
}

static void retention_counts_from_the_delivery_to_the_last_consumer(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    put(g->st, "slow");
    emit(g->st, "1");
    deliver(g, "c", 1);
    assert_int_equal(trim(g, false).events, 0);
    pass(5000);
    deliver(g, "slow", 1);
    assert_int_equal(trim(g, false).events, 0);
    pass(999);
    assert_int_equal(trim(g, false).events, 0);
    pass(1);
    assert_int_equal(trim(g, false).events, 1);
}

static void retention_counts_from_the_end_of_a_retry(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = failed(g, 0, 1, 5000);
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(trim(g, false).events, 0);
    pass(5000);
    deliver(g, "c", 1);
    assert_int_equal(trim(g, false).events, 0);
    pass(999);
    assert_int_equal(trim(g, false).events, 0);
    pass(1);
    assert_int_equal(trim(g, false).events, 1);
}

static void first_trim_deletes_nothing_before_the_retention_time(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    deliver(g, "c", 1);
    pass(100000); /* no sample was taken, so the time of delivery is unknown */
    assert_int_equal(trim(g, true).events, 0);
    assert_int_equal(trim(g, false).events, 0);
    pass(1000);
    assert_int_equal(trim(g, false).events, 1);
}

static void recreated_consumer_holds_events_until_retention_is_over(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    deliver(g, "c", 1);
    assert_int_equal(trim(g, false).events, 0);
    pass(900);
    put(g->st, "new"); /* from the beginning */
    deliver(g, "new", 1);
    pass(100);
    assert_int_equal(trim(g, false).events, 0);
    pass(1000);
    assert_int_equal(trim(g, false).events, 1);
}

static void consumer_starting_at_the_end_does_not_hold_earlier_events(void **state)
{
    struct store_rig *g = *state;
    struct consumer_spec spec = {
        .name = "new", .events = "", .where = "", .lanes = 1, .retry = "fast", .start = START_END};
    put(g->st, "c");
    emit(g->st, "1");
    deliver(g, "c", 1);
    assert_int_equal(trim(g, false).events, 0);
    pass(900);
    put_spec(g->st, &spec);
    pass(101);
    assert_int_equal(trim(g, false).events, 1);
}

static void removing_a_consumer_frees_events_passed_by_the_others(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    put(g->st, "gone");
    emit(g->st, "1");
    deliver(g, "c", 1);
    assert_int_equal(trim(g, false).events, 0);
    pass(5000);
    assert_int_equal(trim(g, false).kept_for_pin, 1);
    must(g->st->ops->consumer_remove(g->st, "gone", false, &err), &err);
    assert_int_equal(trim(g, false).events, 1);
}

static void fast_clock_does_not_extend_the_retention(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    pass(-500); /* so that the event is older than its delivery */
    emit(g->st, "1");
    pass(500);
    deliver(g, "c", 1);
    pass(3600000);
    assert_int_equal(trim(g, false).events, 0);
    pass(-3600000);
    assert_int_equal(trim(g, false).events, 0);
    pass(999);
    assert_int_equal(trim(g, false).events, 0);
    pass(1);
    assert_int_equal(trim(g, false).events, 1);
}

static void trim_keeps_events_still_needed(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    put(g->st, "slow");
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 2);
    assert_true(settle(g, "c", NULL, 0));
    trim(g, false);
    pass(2000);
    struct trim_result t = trim(g, false);
    assert_int_equal(t.events, 0);
    assert_int_equal(t.kept_for_pin, 2);
    assert_non_null(strstr(t.pin, "slow"));
    assert_non_null(strstr(t.pin, "position"));
    assert_int_equal(claim(g, "slow"), 2);
    t = trim(g, false);
    assert_int_equal(t.events, 0);
    assert_non_null(strstr(t.pin, "claim"));
    struct outcome o = failed(g, 0, 1, 100);
    assert_true(settle(g, "slow", &o, 1));
    t = trim(g, false);
    assert_int_equal(t.events, 0);
    assert_non_null(strstr(t.pin, "parked"));
    pass(100);
    deliver(g, "slow", 1);
    assert_int_equal(trim(g, false).events, 0);
    pass(1000);
    assert_int_equal(trim(g, false).events, 2);
}

static void trim_without_consumers_keeps_everything(void **state)
{
    struct store_rig *g = *state;
    emit(g->st, "1");
    pass(2000);
    struct trim_result t = trim(g, false);
    assert_int_equal(t.events, 0);
    assert_non_null(strstr(t.pin, "no consumer"));
}

static void trim_works_in_small_batches(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_result t;
    put(g->st, "c");
    for (int i = 0; i < 25; i++)
        emit(g->st, "1");
    deliver(g, "c", 25);
    trim(g, false);
    pass(2000);
    struct trim_request req = {.older_than_ms = 1000, .max_rows = 10};
    for (int i = 0; i < 3; i++) {
        must(g->st->ops->trim(g->st, &req, &t, &err), &err);
        assert_int_equal(t.events, i < 2 ? 10 : 5);
        assert_true(t.more == (i < 2));
    }
}

static void trimmed_idempotency_keys_can_be_reused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    put(g->st, "c");
    must(keyed(g->st, "k", "1", id, &dup, &err), &err);
    deliver(g, "c", 1);
    assert_int_equal(trim(g, false).keys, 0);
    pass(1001);
    assert_int_equal(trim(g, true).events, 1);
    struct trim_result t = trim(g, false);
    assert_int_equal(t.events, 1);
    assert_int_equal(t.keys, 1);
    must(keyed(g->st, "k", "2", id, &dup, &err), &err);
    assert_false(dup);
}

static void idempotency_key_lives_as_long_as_its_event(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1], again[UUID_TEXT + 1];
    bool dup;
    put(g->st, "c");
    must(keyed(g->st, "k", "1", id, &dup, &err), &err);
    pass(8000); /* an outage prevented its delivery */
    assert_int_equal(trim(g, true).keys, 0);
    assert_int_equal(trim(g, false).keys, 0);
    must(keyed(g->st, "k", "1", again, &dup, &err), &err);
    assert_true(dup);
    assert_string_equal(again, id);
}

/* dry_run counts events to be deleted, at most `most` of each kind. */
static struct trim_result dry_run(struct store_rig *g, size_t most)
{
    struct error err;
    struct trim_result t;
    struct trim_request req = {.older_than_ms = 1000, .dry_run = true, .max_rows = most};
    must(g->st->ops->trim(g->st, &req, &t, &err), &err);
    return t;
}

static void dry_run_counts_up_to_its_limit_and_reports_it(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1], key[2] = "a";
    bool dup;
    put(g->st, "c");
    for (; *key < 'f'; ++*key)
        must(keyed(g->st, key, "1", id, &dup, &err), &err);
    deliver(g, "c", 5);
    assert_int_equal(trim(g, false).events, 0);
    for (int i = 0; i < 4; i++)
        emit(g->st, "kept");
    pass(1001);

    struct trim_result all = dry_run(g, 100), some = dry_run(g, 3);
    assert_int_equal(all.events, 5);
    assert_int_equal(all.keys, 5);
    assert_int_equal(all.kept_for_pin, 4);
    assert_false(all.events_about || all.keys_more || all.kept_more);
    assert_int_equal(some.events, 5);
    assert_int_equal(some.keys, 3);
    assert_int_equal(some.kept_for_pin, 3);
    assert_true(some.events_about && some.keys_more && some.kept_more);
    assert_int_equal(trim(g, false).events, 5);
    assert_int_equal(dry_run(g, 3).events, 0);
}

#define WEEK (7 * 24 * 3600 * INT64_C(1000))
#define HALF_A_MINUTE INT64_C(30000) /* as a relay looks */

static int64_t trim_week(struct store_rig *g)
{
    struct error err;
    struct trim_result t;
    must(g->st->ops->trim(g->st, &(struct trim_request){.older_than_ms = WEEK}, &t, &err), &err);
    return t.events;
}

static void week_old_events_are_trimmed_within_a_minute(void **state)
{
    struct store_rig *g = *state;
    enum { N = 6 };
    put(g->st, "c");
    put(g->st, "d");
    for (int i = 0; i < N; i++) {
        emit(g->st, "1");
        deliver(g, "c", 1);
        deliver(g, "d", 1);
        assert_int_equal(trim_week(g), 0);
        pass(HALF_A_MINUTE);
    }
    pass(WEEK - N * HALF_A_MINUTE - 1);
    assert_int_equal(trim_week(g), 0);
    pass(2);
    for (int i = 0; i < N; i++) {
        assert_int_equal(trim_week(g), 1);
        pass(HALF_A_MINUTE);
    }
}

/* The age of events finished before a consumer existed does not count for that consumer. */
static void recreated_consumer_holds_events_passed_by_the_others(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 3; i++) {
        emit(g->st, "1");
        deliver(g, "c", 1);
        assert_int_equal(trim_week(g), 0);
        pass(HALF_A_MINUTE);
    }
    pass(WEEK / 2);
    put(g->st, "new"); /* from the beginning */
    deliver(g, "new", 3);
    assert_int_equal(trim_week(g), 0);
    pass(WEEK - HALF_A_MINUTE);
    assert_int_equal(trim_week(g), 0);
    pass(HALF_A_MINUTE);
    assert_int_equal(trim_week(g), 3);
}

static void redelivered_events_are_kept_for_another_week(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    put(g->st, "again");
    for (int i = 0; i < 3; i++) {
        emit(g->st, "1");
        deliver(g, "c", 1);
        deliver(g, "again", 1);
        assert_int_equal(trim_week(g), 0);
        pass(HALF_A_MINUTE);
    }
    must(g->st->ops->consumer_remove(g->st, "again", true, &err), &err);
    put(g->st, "again");
    pass(WEEK / 2);
    deliver(g, "again", 3);
    assert_int_equal(trim_week(g), 0);
    pass(WEEK - HALF_A_MINUTE);
    assert_int_equal(trim_week(g), 0);
    pass(HALF_A_MINUTE);
    assert_int_equal(trim_week(g), 3);
}

static void continued_trim_does_not_rescan_kept_events(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_result t;
    struct trim_request req = {.older_than_ms = 1000, .max_rows = 2};
    put(g->st, "c");
    pass(5000);
    emit(g->st, "young, by a clock that was wrong");
    pass(-5000);
    for (int i = 0; i < 5; i++)
        emit(g->st, "1");
    deliver(g, "c", 6);
    trim(g, false);
    pass(4000);
    must(g->st->ops->trim(g->st, &req, &t, &err), &err);
    assert_true(t.more && t.upto > 0);
    int64_t gone = t.events;
    req.after = t.upto;
    must(g->st->ops->trim(g->st, &req, &t, &err), &err);
    assert_true(t.upto > req.after);
    gone += t.events;
    req.after = t.upto;
    must(g->st->ops->trim(g->st, &req, &t, &err), &err);
    assert_false(t.more);
    gone += t.events;
    pass(3000);
    req.after = 0;
    must(g->st->ops->trim(g->st, &req, &t, &err), &err);
    assert_int_equal(gone + t.events, 6);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(week_old_events_are_trimmed_within_a_minute),
    ON_A_STORE(recreated_consumer_holds_events_passed_by_the_others),
    ON_A_STORE(redelivered_events_are_kept_for_another_week),
    ON_A_STORE(continued_trim_does_not_rescan_kept_events),
    ON_A_STORE(dry_run_counts_up_to_its_limit_and_reports_it),
    ON_A_STORE(trim_deletes_old_events_passed_by_all_consumers),
    ON_A_STORE(event_delivered_late_is_kept_for_the_retention),
    ON_A_STORE(retention_counts_from_the_delivery_to_the_last_consumer),
    ON_A_STORE(retention_counts_from_the_end_of_a_retry),
    ON_A_STORE(first_trim_deletes_nothing_before_the_retention_time),
    ON_A_STORE(recreated_consumer_holds_events_until_retention_is_over),
    ON_A_STORE(consumer_starting_at_the_end_does_not_hold_earlier_events),
    ON_A_STORE(removing_a_consumer_frees_events_passed_by_the_others),
    ON_A_STORE(fast_clock_does_not_extend_the_retention),
    ON_A_STORE(idempotency_key_lives_as_long_as_its_event),
    ON_A_STORE(trim_keeps_events_still_needed),
    ON_A_STORE(trim_without_consumers_keeps_everything),
    ON_A_STORE(trim_works_in_small_batches),
    ON_A_STORE(trimmed_idempotency_keys_can_be_reused),
};

const struct suite_part store_retention_tests = SUITE_PART(tests);
