/* The sink contract on handlers, and promises that only they make. */
#include "sink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/handlers.h"

struct peer {
    struct sink_arrivals got;
    bool away;
};

static enum sink_status keep(struct handler_call *call, const struct delivery *d, void *ctx)
{
    struct peer *p = ctx;
    if (p->away) {
        snprintf(call->text, sizeof call->text, "gone fishing");
        return SINK_DOWN;
    }
    sink_arrivals_add(&p->got, d->ev->id, d->ev->payload);
    return SINK_DELIVERED;
}

static void *peer_setup(void)
{
    return calloc(1, sizeof(struct peer));
}

static void peer_teardown(void *peer)
{
    sink_arrivals_release(&((struct peer *)peer)->got);
    free(peer);
}

static int peer_open(void *peer, const struct sink_config *cfg, struct sink **ret,
                     struct error *err)
{
    return handlers_open(cfg, &(struct handler){.pattern = "order.*", .fn = keep, .ctx = peer}, 1,
                         NULL, ret, err);
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    struct peer *p = peer;
    for (size_t i = 0; i < p->got.n; i++)
        sink_arrivals_add(got, str_of(p->got.a[i].id),
                          (struct str){p->got.a[i].payload, p->got.a[i].n});
}

static void peer_break(void *peer)
{
    ((struct peer *)peer)->away = true;
}

static void peer_heal(void *peer)
{
    ((struct peer *)peer)->away = false;
}

/* A script sets what each handler returns. trace records the calls. */
struct script {
    struct script_step {
        char name;
        enum sink_status status;
        const char *text;
        int64_t delay_ms;
        struct script *all;
    } steps[3];
    char trace[16];
};

static enum sink_status play(struct handler_call *call, const struct delivery *d, void *ctx)
{
    struct script_step *s = ctx;
    (void)d;
    s->all->trace[strlen(s->all->trace)] = s->name;
    if (s->text)
        snprintf(call->text, sizeof call->text, "%s", s->text);
    call->delay_ms = s->delay_ms;
    return s->status;
}

static void rig_done(void *ctx, struct delivery *d, const struct sink_result *r)
{
    struct sink_item *it = (struct sink_item *)d;
    (void)ctx;
    it->answers++;
    it->status = r->status;
    it->has_text = r->text != NULL;
    it->retry_after_ms = r->retry_after_ms;
    snprintf(it->text, sizeof it->text, "%s", r->text ? r->text : "");
}

/* submit_to sends the queued events to handlers a, b and c with these patterns, and returns how
 * many were taken. */
static size_t submit_to(struct sink_rig *rig, struct script *s, const char *const patterns[3])
{
    struct handler h[3];
    struct delivery *d[8];
    struct sink_config cfg = {
        .consumer = "search", .clock = &rig->clock, .done = rig_done, .done_ctx = rig};
    for (size_t i = 0; i < 3; i++) {
        s->steps[i].name = (char)('a' + i);
        s->steps[i].all = s;
        h[i] = (struct handler){.pattern = patterns[i], .fn = play, .ctx = &s->steps[i]};
    }
    assert_int_equal(handlers_open(&cfg, h, 3, NULL, &rig->sk, NULL), 0);
    memset(h, 0, sizeof h); /* they were copied */
    for (size_t i = 0; i < rig->n; i++)
        d[i] = &rig->items[i]->d;
    return rig->sk->ops->submit(rig->sk, d, rig->n);
}

static void matching_handlers_run_in_the_order_they_were_added(void **state)
{
    struct sink_rig rig;
    struct script s = {0};
    (void)state;
    sink_rig_init(&rig);
    struct sink_item *it = sink_rig_add(&rig, "{}", 0);
    assert_int_equal(submit_to(&rig, &s, (const char *[]){"order.created", "user.*", "*"}), 1);
    assert_string_equal(s.trace, "ac");
    assert_int_equal(it->answers, 1);
    assert_int_equal(it->status, SINK_DELIVERED);
    assert_false(it->has_text);
    sink_rig_release(&rig);
}

static void first_failure_is_the_result_and_ends_the_attempt(void **state)
{
    static const enum sink_status verdicts[] = {SINK_RETRY, SINK_REJECT, SINK_DOWN};
    (void)state;
    for (size_t i = 0; i < COUNT(verdicts); i++) {
        struct sink_rig rig;
        struct script s = {.steps[1] = {.status = verdicts[i], .text = "stock service said 503"}};
        sink_rig_init(&rig);
        struct sink_item *it = sink_rig_add(&rig, "{}", 0);
        submit_to(&rig, &s, (const char *[]){"*", "*", "*"});
        assert_string_equal(s.trace, "ab");
        assert_int_equal(it->status, verdicts[i]);
        assert_string_equal(it->text, "stock service said 503");
        sink_rig_release(&rig);
    }
}

static void event_without_a_handler_counts_as_delivered(void **state)
{
    struct sink_rig rig;
    struct script s = {0};
    (void)state;
    sink_rig_init(&rig);
    struct sink_item *it = sink_rig_add(&rig, "{}", 0);
    submit_to(&rig, &s, (const char *[]){"user.*", "order", "order.created.*"});
    assert_string_equal(s.trace, "");
    assert_int_equal(it->status, SINK_DELIVERED);
    sink_rig_release(&rig);
}

static void sink_accepts_nothing_more_once_a_handler_is_down(void **state)
{
    struct sink_rig rig;
    struct script s = {.steps[0] = {.status = SINK_DOWN}};
    (void)state;
    sink_rig_init(&rig);
    sink_rig_add_many(&rig, 3, 16);
    assert_int_equal(submit_to(&rig, &s, (const char *[]){"*", "*", "*"}), 1);
    assert_string_equal(s.trace, "a");
    assert_true(rig.items[0]->has_text);
    assert_int_equal(rig.items[1]->answers, 0);
    sink_rig_release(&rig);
}

static void handler_error_text_is_sanitized(void **state)
{
    static const struct {
        const char *said, *text;
        int64_t said_ms, ms;
    } cases[] = {
        {"two\nlines \x1b[2J \xff \xc2\x9b", "two lines  [2J ? ?", 5, 5},
        {" \n", "the handler gave no reason", -5, 0},
        {"for ever", "for ever", INT64_MAX, INT64_C(365) * 24 * 3600000},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct sink_rig rig;
        struct script s = {
            .steps = {{.status = SINK_RETRY, .text = cases[i].said, .delay_ms = cases[i].said_ms}}};
        sink_rig_init(&rig);
        struct sink_item *it = sink_rig_add(&rig, "{}", 0);
        assert_int_equal(submit_to(&rig, &s, (const char *const[3]){"*", "x", "x"}), 1);
        assert_int_equal(it->status, SINK_RETRY);
        assert_string_equal(it->text, cases[i].text);
        assert_int_equal(it->retry_after_ms, cases[i].ms);
        rig.accepted = rig.answered = 1;
        sink_rig_release(&rig);
    }
}

static void unknown_verdict_counts_as_a_retry(void **state)
{
    struct sink_rig rig;
    struct script s = {.steps[0] = {.status = (enum sink_status)99}};
    (void)state;
    sink_rig_init(&rig);
    struct sink_item *it = sink_rig_add(&rig, "{}", 0);
    submit_to(&rig, &s, (const char *[]){"*", "*", "*"});
    assert_int_equal(it->status, SINK_RETRY);
    assert_true(it->has_text);
    sink_rig_release(&rig);
}

int main(void)
{
    static const struct sink_case handlers = {
        .name = "handlers",
        .many = 2000,
        .setup = peer_setup,
        .teardown = peer_teardown,
        .open = peer_open,
        .arrived = peer_arrived,
        SINK_PEER_BREAKS,
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(matching_handlers_run_in_the_order_they_were_added),
        cmocka_unit_test(first_failure_is_the_result_and_ends_the_attempt),
        cmocka_unit_test(event_without_a_handler_counts_as_delivered),
        cmocka_unit_test(sink_accepts_nothing_more_once_a_handler_is_down),
        cmocka_unit_test(handler_error_text_is_sanitized),
        cmocka_unit_test(unknown_verdict_counts_as_a_retry),
    };
    return sink_suite_run(&handlers, &(struct suite_part)SUITE_PART(tests), 1);
}
