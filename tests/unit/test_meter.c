/* The counters of deliveries, and the health derived from them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "admin/admin.h"
#include "engine/meter.h"

#define S_NS (1000 * MS_NS)

static void end_with(struct meter *m, const char *type, enum sink_status status, int64_t call_ns,
                     int64_t age_ms)
{
    meter_ended(m,
                &(struct meter_end){
                    .type = str_of(type), .status = status, .call_ns = call_ns, .age_ms = age_ms});
}

static void deliveries_are_counted_by_type_and_outcome(void **state)
{
    static struct meter m;
    (void)state;
    end_with(&m, "a", SINK_DELIVERED, 1, 1);
    end_with(&m, "ab", SINK_DELIVERED, 1, 1);
    end_with(&m, "a", SINK_DELIVERED, 1, 1);
    end_with(&m, "a", SINK_RETRY, 1, 1);
    end_with(&m, "a", SINK_CANCELLED, 1, 1);
    assert_int_equal(m.n_types, 2);
    assert_string_equal(m.type[0].name, "a");
    assert_int_equal(m.type[0].ends[SINK_DELIVERED], 2);
    assert_int_equal(m.type[0].ends[SINK_RETRY], 1);
    assert_int_equal(m.type[0].ends[SINK_CANCELLED], 0);
    assert_string_equal(m.type[1].name, "ab");
    assert_int_equal(m.type[1].ends[SINK_DELIVERED], 1);
}

static void burials_are_counted_by_type_and_reason(void **state)
{
    static struct meter m;
    (void)state;
    end_with(&m, "a", SINK_RETRY, 1, 1);
    meter_buried(&m, str_of("a"), BURIAL_ATTEMPTS, 1);
    meter_buried(&m, str_of("b"), BURIAL_REJECTED, 1);
    meter_buried(&m, str_of(""), BURIAL_CRASHED, 3);
    meter_buried(&m, str_of(""), BURIAL_CRASHED, 0);
    assert_int_equal(m.n_types, 2);
    assert_int_equal(m.type[0].buried[BURIAL_ATTEMPTS], 1);
    assert_int_equal(m.type[1].buried[BURIAL_REJECTED], 1);
    assert_int_equal(m.type[METER_TYPES].buried[BURIAL_CRASHED], 3);
}

/* A role with write access to the table can backdate an event to 1970, or to any time. */
static void sums_of_ages_saturate(void **state)
{
    static struct meter m;
    int64_t before = 0;
    (void)state;
    for (int i = 0; i < 10; i++) {
        end_with(&m, "a", SINK_DELIVERED, 1, INT64_C(1800000000000));
        assert_true(m.delivery.sum_ns >= before);
        before = m.delivery.sum_ns;
    }
    end_with(&m, "a", SINK_DELIVERED, 1, INT64_MAX);
    end_with(&m, "a", SINK_DELIVERED, 1, INT64_MIN);
    assert_int_equal(m.delivery.sum_ns, INT64_MAX);
    assert_int_equal(clock_since(5, 3), 2);
    assert_int_equal(clock_since(1, INT64_MIN), INT64_MAX);
    assert_int_equal(clock_since(-2, INT64_MAX), INT64_MIN);
}

static void types_beyond_the_limit_and_long_ones_count_as_others(void **state)
{
    static struct meter m;
    char name[METER_NAME + 1];
    (void)state;
    memset(name, 'x', METER_NAME);
    name[METER_NAME] = 0;
    end_with(&m, name, SINK_DELIVERED, 1, 1);
    assert_int_equal(m.n_types, 0);
    assert_int_equal(m.type[METER_TYPES].ends[SINK_DELIVERED], 1);
    end_with(&m, name + 1, SINK_DELIVERED, 1, 1);
    assert_string_equal(m.type[0].name, name + 1);
    for (int round = 0; round < 2; round++)
        for (int i = 1; i < METER_TYPES + 10; i++) {
            snprintf(name, sizeof name, "type%d", i);
            end_with(&m, name, SINK_DELIVERED, 1, 1);
        }
    assert_int_equal(m.n_types, METER_TYPES);
    assert_int_equal(m.type[METER_TYPES].ends[SINK_DELIVERED], 1 + 2 * 10);
    for (size_t i = 1; i < METER_TYPES; i++)
        assert_int_equal(m.type[i].ends[SINK_DELIVERED], 2);
}

static void bucket_bounds_are_inclusive_and_time_non_negative(void **state)
{
    static struct meter m;
    (void)state;
    for (size_t i = 1; i < METER_BUCKETS; i++) {
        assert_true(meter_call_bounds[i - 1] < meter_call_bounds[i]);
        assert_true(meter_delivery_bounds[i - 1] < meter_delivery_bounds[i]);
    }
    end_with(&m, "a", SINK_DELIVERED, meter_call_bounds[3], -5);
    end_with(&m, "a", SINK_RETRY, meter_call_bounds[3] + 1, 7);
    end_with(&m, "a", SINK_DELIVERED, INT64_C(3600) * S_NS, 3600 * 1000);
    assert_int_equal(m.call.bucket[3], 1);
    assert_int_equal(m.call.bucket[4], 1);
    assert_int_equal(m.call.bucket[METER_BUCKETS], 1);
    assert_int_equal(m.delivery.bucket[0], 1); /* the producer's clock was ahead */
    assert_int_equal(m.delivery.bucket[METER_BUCKETS], 1);
    assert_int_equal(m.delivery.sum_ns, 3600 * S_NS);
}

/* ---- health, at second 1,000, with 60 s of patience ---- */

static struct worker_view working_since(int64_t since_s)
{
    return (struct worker_view){
        .state = PIPELINE_RUNNING,
        .timeout_ms = 30000,
        .stats = {.stalled_since = since_s * S_NS, .ended_at = since_s * S_NS}};
}

static void judged(const struct worker_view *v, bool ready, bool alive, const char *text)
{
    struct health h = health_of(v, 1000 * S_NS, 60 * S_NS, false);
    assert_string_equal(h.text, text);
    assert_int_equal(h.ready, ready);
    assert_int_equal(h.alive, alive);
}

static void worker_making_progress_or_idle_is_ready(void **state)
{
    struct worker_view v = working_since(0), w = working_since(940);
    (void)state;
    judged(&v, true, true, "idle");
    judged(&w, true, true, "working");
}

static void worker_waiting_for_a_sink_is_not_ready_but_alive(void **state)
{
    struct worker_view v = working_since(900);
    (void)state;
    snprintf(v.stats.why, sizeof v.stats.why, "sink is down: gone");
    judged(&v, false, true, "no progress for 100 s: sink is down: gone");
    v.stats.stalled_since = 950 * S_NS;
    judged(&v, true, true, "waiting: sink is down: gone");
    v.stats.why[0] = 0;
    v.stats.stalled_since = 900 * S_NS;
    v.stats.ended_at = 990 * S_NS;
    judged(&v, false, true, "no progress for 100 s: every delivery fails");
}

static void sink_silent_past_its_time_limit_is_a_stuck_loop(void **state)
{
    struct worker_view v = working_since(930), w = working_since(900);
    (void)state;
    judged(&v, false, true, "no progress for 70 s: no answer from the sink for 70 s");
    judged(&w, false, false, "no progress for 100 s: no answer from the sink for 100 s");
}

static void endless_step_is_not_alive(void **state)
{
    struct worker_view v = working_since(0);
    (void)state;
    v.step_since = 950 * S_NS;
    judged(&v, true, true, "idle");
    v.step_since = 930 * S_NS;
    judged(&v, false, false,
           "stuck for 70 s: the store does not answer, or a handler does not return");
}

static void paused_worker_is_ready_and_a_stopped_one_is_not(void **state)
{
    struct worker_view v = working_since(900);
    (void)state;
    v.stats.paused = true;
    judged(&v, true, true, "paused");
    v.stats.paused = false;
    assert_true(health_of(&v, 1000 * S_NS, 60 * S_NS, true).ready);
    v.state = PIPELINE_DRAINING;
    judged(&v, false, true, "stopping");
    v.state = PIPELINE_FAILED;
    snprintf(v.error, sizeof v.error, "no such consumer");
    judged(&v, false, true, "stopped: no such consumer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deliveries_are_counted_by_type_and_outcome),
        cmocka_unit_test(burials_are_counted_by_type_and_reason),
        cmocka_unit_test(sums_of_ages_saturate),
        cmocka_unit_test(types_beyond_the_limit_and_long_ones_count_as_others),
        cmocka_unit_test(bucket_bounds_are_inclusive_and_time_non_negative),
        cmocka_unit_test(worker_making_progress_or_idle_is_ready),
        cmocka_unit_test(worker_waiting_for_a_sink_is_not_ready_but_alive),
        cmocka_unit_test(sink_silent_past_its_time_limit_is_a_stuck_loop),
        cmocka_unit_test(endless_step_is_not_alive),
        cmocka_unit_test(paused_worker_is_ready_and_a_stopped_one_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
