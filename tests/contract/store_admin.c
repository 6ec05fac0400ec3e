/* store_admin.c: dead letters, consumers, retention, inspection. */
#include "store_impl.h"

/* ---- dead letters ---- */

struct letters {
    size_t n;
    char id[UUID_TEXT + 1], error[64], payload[64];
    bool retrying;
};

static int note_letter(void *ctx, const struct dead_letter *d)
{
    struct letters *l = ctx;
    l->n++;
    l->retrying = d->retrying;
    snprintf(l->id, sizeof l->id, "%s", d->ev.id.p);
    snprintf(l->error, sizeof l->error, "%s", d->error);
    snprintf(l->payload, sizeof l->payload, "%s", d->ev.payload.p);
    return 0;
}

static struct letters letters(struct store_rig *g)
{
    struct error err;
    struct letters l = {0};
    must(g->st->ops->dead(g->st, &(struct dead_query){.consumer = "c"}, note_letter, &l, &err),
         &err);
    return l;
}

static void kill_one(struct store_rig *g)
{
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = {.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 3, .error = "no use"};
    assert_true(settle(g, "c", &o, 1));
}

static void dead_letter_is_kept_whole_and_survives_trimming(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_result t;
    put(g->st, "c");
    emit_with(g->st, "x", "1", "{\"keep\":true}", 0);
    kill_one(g);
    pass(1000);
    must(g->st->ops->trim(g->st, &(struct trim_request){0}, &t, &err), &err);
    assert_int_equal(t.events, 1);
    struct letters l = letters(g);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.error, "no use");
    assert_string_equal(l.payload, "{\"keep\":true}");
    int64_t n;
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){.consumer = "c", .id = l.id}, &n, &err),
         &err);
    assert_int_equal(n, 1);
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].id.p, l.id);
    assert_string_equal(g->b.ev[0].payload.p, "{\"keep\":true}");
    assert_int_equal(g->b.ev[0].attempts, 0);
}

static bool retry_now(struct store_rig *g, int64_t seq)
{
    struct error err;
    bool waited;
    must(g->st->ops->retry_now(g->st, "c", seq, &waited, &err), &err);
    return waited;
}

static void event_that_waits_for_its_next_attempt_gets_it_when_told(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 2);
    int64_t first = g->b.ev[0].seq, behind = g->b.ev[1].seq;
    struct outcome o[] = {
        {.ev = &g->b.ev[0],
         .kind = OUTCOME_RETRY,
         .attempts = 1,
         .delay_ms = 3600000,
         .error = "later"},
        {.ev = &g->b.ev[1], .kind = OUTCOME_BEHIND},
    };
    assert_false(retry_now(g, first)); /* it is in somebody's hand */
    assert_true(settle(g, "c", o, 2));
    assert_int_equal(claim(g, "c"), 0);
    assert_false(retry_now(g, behind)); /* it waits for the first */
    assert_true(retry_now(g, first));
    assert_int_equal(claim(g, "c"), 2);
    assert_int_equal(g->b.ev[0].seq, first);
    assert_int_equal(g->b.ev[0].attempts, 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_false(retry_now(g, first));
}

static void retried_letter_is_gone_once_delivered_and_back_when_it_dies_again(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    int64_t n;
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){0}, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_true(letters(g).retrying);
    assert_int_equal(look(g, "c").dead, 0);
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){0}, &n, &err), &err);
    assert_int_equal(n, 0); /* it is on its way already */
    kill_one(g);
    assert_int_equal(letters(g).n, 1);
    assert_false(letters(g).retrying);
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){0}, &n, &err), &err);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(letters(g).n, 0);
}

static void dropped_letter_is_gone(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    int64_t n;
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    must(g->st->ops->dead_drop(g->st, &(struct dead_query){.type = "other"}, &n, &err), &err);
    assert_int_equal(n, 0);
    must(g->st->ops->dead_drop(g->st, &(struct dead_query){.type = "t.*"}, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_int_equal(letters(g).n, 0);
}

/* ---- consumers ---- */

static void new_consumer_starts_where_it_is_told(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    for (int i = 0; i < 5; i++)
        emit(g->st, "1");
    struct consumer_spec c = {
        .name = "b", .events = "", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 1};
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.name = "e";
    c.start = START_END;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    assert_int_equal(claim(g, "b"), 5);
    c.name = "s";
    c.start = START_SEQ;
    c.start_seq = g->b.ev[3].seq;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    assert_int_equal(claim(g, "e"), 0);
    assert_int_equal(claim(g, "s"), 2);
    emit(g->st, "1");
    assert_int_equal(claim(g, "e"), 1);
}

static void registering_again_keeps_the_position(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool created;
    struct consumer_spec c = {
        .name = "c", .events = "a.*", .where = "", .retry = "slow", .order = ORDER_KEY, .lanes = 1};
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    must(g->st->ops->consumer_put(g->st, &c, &created, &err), &err);
    assert_false(created);
    assert_string_equal(look(g, "c").spec.events, "a.*");
    assert_string_equal(look(g, "c").spec.retry, "slow");
    assert_int_equal(look(g, "c").behind, 0);
}

static void order_and_lanes_change_only_when_through(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = {
        .name = "c", .events = "", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 4};
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 0); /* one who does not know yet */
    assert_true(g->hint.changed);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_KEY, 4)), 1);
}

static void only_a_worker_with_the_registered_filter_gets_anything(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    struct consumer_spec c = {
        .name = "c", .events = "a.*", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 1};
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "b.x", "1", "{}", 0);
    struct claim_request old = request("c", "old"), new = request("c", "new");
    old.events = "a.*";
    must(filter_new(old.events, NULL, &f, &err), &err);
    old.filter = f;
    c.events = new.events = "a.*, b.*"; /* as a relay gives it: in its normal form */
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    assert_int_equal(claim_by(g, old), 0); /* it would pass over b.x */
    assert_true(g->hint.changed);
    assert_int_equal(claim_by(g, new), 2);
    pass(LEASE);
    assert_int_equal(claim_by(g, old), 0); /* nor does it take over, which would lose b.x as well */
    assert_int_equal(g->hint.crashed, 0);
    assert_int_equal(claim_by(g, new), 1);
    assert_int_equal(g->hint.crashed, 2);
    filter_free(f);
}

/* ---- settings that were replaced ---- */

static struct consumer_spec with_events(const char *events)
{
    return (struct consumer_spec){.name = "c",
                                  .events = events,
                                  .where = "",
                                  .retry = "fast",
                                  .order = ORDER_KEY,
                                  .lanes = 1};
}

static void refused(struct store_rig *g, const struct consumer_spec *c, const char *newer,
                    const char *command)
{
    struct error err;
    assert_int_equal(g->st->ops->consumer_put(g->st, c, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    if (!strstr(err.text, newer) || !strstr(err.text, command))
        fail_msg("it says: %s", err.text);
}

static void settings_that_were_replaced_do_not_come_back_by_themselves(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec old = with_events("a.*"), new = with_events("a.*, b.*"),
                         third = with_events("c.*");
    new.by = "relay-b:17";
    must(g->st->ops->consumer_put(g->st, &old, NULL, &err), &err);
    must(g->st->ops->consumer_put(g->st, &new, NULL, &err), &err);
    refused(g, &old, "events \"a.*, b.*\"", "outbox consumers revert c --to 1");
    refused(g, &old, "by relay-b:17", "");
    old.how = PUT_AGAIN;
    refused(g, &old, "events \"a.*, b.*\"", "outbox consumers revert c --to 1");
    assert_string_equal(look(g, "c").spec.events, "a.*, b.*");
    must(g->st->ops->consumer_put(g->st, &new, NULL, &err), &err);
    /* those nobody has had are as good as ever */
    must(g->st->ops->consumer_put(g->st, &third, NULL, &err), &err);
    refused(g, &new, "events \"c.*\"", "--to 2");
    refused(g, &old, "events \"c.*\"", "--to 1");
}

static void predicate_order_and_lanes_that_were_replaced_do_not_come_back(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = with_events(""), old = c;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.lanes = 4;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    refused(g, &old, "lanes", "--to 1");
    c.order = ORDER_NONE;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.where = "a = 1";
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.where = "";
    refused(g, &c, "where \"a = 1\"", "--to 3");
    refused(g, &old, "order", "--to 1");
    assert_int_equal(look(g, "c").spec.lanes, 4);
}

static void retry_policy_changes_freely(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = with_events("a.*");
    struct consumer_settings *list;
    size_t n;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.retry = "slow";
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.retry = "fast";
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    assert_string_equal(look(g, "c").spec.retry, "fast");
    must(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), &err);
    assert_int_equal(n, 0);
}

static void operator_brings_settings_back_on_purpose(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec a = with_events("a.*"), b = with_events("b.*");
    struct consumer_settings *list;
    size_t n;
    must(g->st->ops->consumer_put(g->st, &a, NULL, &err), &err);
    pass(1000);
    must(g->st->ops->consumer_put(g->st, &b, NULL, &err), &err);
    a.how = PUT_PURPOSE;
    a.by = "anna";
    must(g->st->ops->consumer_put(g->st, &a, NULL, &err), &err);
    a.how = PUT_START;
    must(g->st->ops->consumer_put(g->st, &a, NULL, &err), &err); /* its workers go on */
    /* and those with the others stand by */
    refused(g, &b, "events \"a.*\"", "--to 2");
    must(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), &err);
    assert_int_equal(n, 2);
    assert_string_equal(list[0].events, "a.*");
    assert_string_equal(list[0].by, "anna");
    assert_int_equal(list[0].generation, 3);
    assert_string_equal(list[1].events, "b.*");
    assert_true(list[0].since >= list[1].since);
}

static void refused_settings_change_nothing(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_settings *list;
    size_t n;
    struct consumer_spec c = with_events("");
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    emit(g->st, "1");
    c.lanes = 2; /* it is not through */
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    must(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), &err);
    assert_int_equal(n, 0);
}

static void only_one_that_starts_makes_a_consumer(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = with_events("a.*");
    struct consumer_settings *list;
    size_t n;
    for (int how = PUT_AGAIN; how <= PUT_PURPOSE; how++) {
        c.how = (enum put)how;
        assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
        assert_int_equal(err.code, ERR_NOTFOUND);
    }
    assert_int_equal(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
}

static void consumer_made_anew_has_no_past(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec a = with_events("a.*"), b = with_events("b.*");
    must(g->st->ops->consumer_put(g->st, &a, NULL, &err), &err);
    must(g->st->ops->consumer_put(g->st, &b, NULL, &err), &err);
    must(g->st->ops->consumer_remove(g->st, "c", false, &err), &err);
    must(g->st->ops->consumer_put(g->st, &b, NULL, &err), &err);
    must(g->st->ops->consumer_put(g->st, &a, NULL, &err), &err);
}

static void as_many_settings_are_remembered_as_it_says(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_settings *list;
    size_t n;
    char events[16];
    for (int i = 0; i < STORE_GENERATIONS + 5; i++) {
        snprintf(events, sizeof events, "t%d", i);
        struct consumer_spec c = with_events(events);
        must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    }
    must(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), &err);
    assert_int_equal(n, STORE_GENERATIONS);
    assert_string_equal(list[0].events, events);
}

static void start_ahead_of_the_head_survives_a_change_of_lanes(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = {.name = "c",
                              .events = "",
                              .where = "",
                              .retry = "fast",
                              .order = ORDER_KEY,
                              .lanes = 1,
                              .start = START_SEQ,
                              .start_seq = 3};
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.lanes = 2;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    for (int i = 0; i < 4; i++)
        emit(g->st, NULL);
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        struct claim_request req = request_as("c", "me", ORDER_KEY, 2);
        req.lane_hint = i;
        n += claim_by(g, req);
    }
    assert_int_equal(n, 2);
}

static void paused_consumer_gets_nothing_until_resumed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.paused);
    must(g->st->ops->consumer_pause(g->st, "c", false, &err), &err);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(g->st->ops->consumer_pause(g->st, "nobody", true, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
}

static void consumer_with_something_to_lose_is_removed_only_by_force(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    assert_int_equal(g->st->ops->consumer_remove(g->st, "c", false, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
    assert_int_equal(err.fate, FATE_FATAL);
    put(g->st, "c"); /* begins anew */
    assert_int_equal(claim(g, "c"), 1);
}

static void claim_of_a_removed_consumer_is_none_of_the_one_made_anew(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct batch old = g->b;
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    put(g->st, "c");
    struct arena before = g->a; /* the old batch lives in it */
    arena_init(&g->a, 0);
    assert_int_equal(claim(g, "c"), 1); /* by the same worker, which has not noticed */
    assert_true(g->b.epoch > old.epoch);
    struct batch now = g->b;
    g->b = old;
    assert_false(settle(g, "c", NULL, 0));
    g->b = now;
    assert_true(settle(g, "c", NULL, 0));
    arena_release(&before);
}

static void bad_consumer_names_are_refused(void **state)
{
    struct store_rig *g = *state;
    static const char *const bad[] = {
        "",
        "a b",
        "a/b",
        "x'y",
        "a;b",
        "\xc3\xa9",
        "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error err;
        struct consumer_spec c = {
            .name = bad[i], .events = "", .where = "", .retry = "", .lanes = 1};
        assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
    }
}

static void report_is_shown_until_cleared(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->consumer_report(g->st, "c", "sink is down", &err), &err);
    assert_string_equal(look(g, "c").last_error, "sink is down");
    must(g->st->ops->consumer_report(g->st, "c", NULL, &err), &err);
    assert_null(look(g, "c").last_error);
}

/* ---- retention (G10) ---- */

static struct trim_result trim(struct store_rig *g, bool dry)
{
    struct error err;
    struct trim_result t;
    must(g->st->ops->trim(g->st, &(struct trim_request){.older_than_ms = 1000, .dry_run = dry}, &t,
                          &err),
         &err);
    return t;
}

/* deliver: all there is, to the consumer. */
static void deliver(struct store_rig *g, const char *consumer, size_t n)
{
    assert_int_equal(claim(g, consumer), n);
    assert_true(settle(g, consumer, NULL, 0));
}

static void trim_takes_old_events_that_everyone_is_past(void **state)
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

/* Retention is 1000 ms in these; trimming is what notices that a consumer has got past
 * something. */
static void event_delivered_late_is_kept_for_the_retention_time_after_its_delivery(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    for (int i = 0; i < 8; i++) { /* an outage, eight times as long as events are kept */
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

static void never_trimmed_before_nothing_goes_until_the_retention_time_from_now(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    deliver(g, "c", 1);
    pass(100000); /* nobody has looked: when it was delivered is not known */
    assert_int_equal(trim(g, true).events, 0);
    assert_int_equal(trim(g, false).events, 0);
    pass(1000);
    assert_int_equal(trim(g, false).events, 1);
}

static void consumer_made_anew_holds_events_until_it_has_had_them_long_enough(void **state)
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

static void consumer_that_starts_at_the_end_does_not_hold_what_was_before_it(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec spec = {
        .name = "new", .events = "", .where = "", .lanes = 1, .retry = "fast", .start = START_END};
    put(g->st, "c");
    emit(g->st, "1");
    deliver(g, "c", 1);
    assert_int_equal(trim(g, false).events, 0);
    pass(900);
    must(g->st->ops->consumer_put(g->st, &spec, NULL, &err), &err);
    pass(101);
    assert_int_equal(trim(g, false).events, 1);
}

static void removed_consumer_frees_what_the_others_had_long_ago(void **state)
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

static void clock_that_was_ahead_keeps_nothing_for_longer_than_the_retention_time_from_now(
    void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    pass(-500); /* so that it is not ahead of when the event was made */
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

static void trim_leaves_what_a_position_a_claim_or_a_parked_event_needs(void **state)
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

static void old_idempotency_keys_are_trimmed_and_free_again(void **state)
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

static void idempotency_key_is_remembered_for_as_long_as_its_event_is_kept(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1], again[UUID_TEXT + 1];
    bool dup;
    put(g->st, "c");
    must(keyed(g->st, "k", "1", id, &dup, &err), &err);
    pass(8000); /* nobody could deliver it for so long */
    assert_int_equal(trim(g, true).keys, 0);
    assert_int_equal(trim(g, false).keys, 0);
    must(keyed(g->st, "k", "1", again, &dup, &err), &err);
    assert_true(dup);
    assert_string_equal(again, id);
}

/* ---- inspection (C1.9, C2.2) ---- */

struct seen {
    size_t n;
    enum delivery_state state;
    int attempts;
};

static int note_event(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct seen *s = ctx;
    (void)ev;
    s->n++;
    if (n)
        s->state = d[0].state, s->attempts = d[0].attempts;
    return 0;
}

static struct seen events(struct store_rig *g, struct event_query q)
{
    struct error err;
    struct seen s = {0};
    must(g->st->ops->events(g->st, &q, note_event, &s, &err), &err);
    return s;
}

static void every_state_of_the_contract_is_shown(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_INFLIGHT);
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "c", &o, 1));
    struct seen s = events(g, (struct event_query){0});
    assert_int_equal(s.state, STATE_FAILED);
    assert_int_equal(s.attempts, 1);
    pass(1000);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_INFLIGHT);
    o = (struct outcome){.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 2, .error = "x"};
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_EXPIRED);
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(events(g, (struct event_query){.newest_first = true, .limit = 1}).state,
                     STATE_DELIVERED);
}

/* state_of_nth: of the nth event there is, for consumer c. */
static enum delivery_state state_of_nth(struct store_rig *g, int nth)
{
    struct error err;
    struct seen s = {0};
    struct event_query q = {.consumer = "c", .limit = (size_t)nth};
    must(g->st->ops->events(g->st, &q, note_event, &s, &err), &err);
    assert_int_equal(s.n, nth);
    return s.state;
}

static void dropped_dead_letter_is_shown_as_dropped(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    int64_t n;
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 3);
    struct outcome o[] = {
        {.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 3, .error = "no use"},
        {.ev = &g->b.ev[1], .kind = OUTCOME_DEAD, .attempts = 3, .error = "no use"}};
    assert_true(settle(g, "c", o, 2));
    struct letters l = letters(g);
    must(g->st->ops->dead_drop(g->st, &(struct dead_query){.id = l.id}, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_int_equal(state_of_nth(g, 1), STATE_EXPIRED);
    assert_int_equal(state_of_nth(g, 2), STATE_DROPPED);
    assert_int_equal(state_of_nth(g, 3), STATE_DELIVERED);
    assert_int_equal(events(g, (struct event_query){.state = STATE_DROPPED + 1}).n, 1);
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){0}, &n, &err), &err);
    assert_int_equal(n, 1); /* the dropped one is gone */
    assert_int_equal(state_of_nth(g, 1), STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(state_of_nth(g, 1), STATE_DELIVERED); /* sent back, and delivered in the end */
    assert_int_equal(state_of_nth(g, 2), STATE_DROPPED);
}

static void consumer_made_anew_knows_nothing_of_what_was_dropped(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    int64_t n;
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    must(g->st->ops->dead_drop(g->st, &(struct dead_query){0}, &n, &err), &err);
    assert_int_equal(state_of_nth(g, 1), STATE_DROPPED);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    put(g->st, "c");
    assert_int_equal(state_of_nth(g, 1), STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(state_of_nth(g, 1), STATE_DELIVERED);
    emit(g->st, "1");
    kill_one(g);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    put(g->st, "c"); /* with a dead letter, which is removed, not dropped */
    assert_int_equal(state_of_nth(g, 2), STATE_PENDING);
}

static void events_from_before_the_start_are_shown_as_such(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = {.name = "c",
                              .events = "",
                              .where = "",
                              .retry = "fast",
                              .order = ORDER_KEY,
                              .lanes = 1,
                              .start = START_END};
    for (int i = 0; i < 3; i++)
        emit(g->st, "1");
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    emit(g->st, "1");
    assert_int_equal(state_of_nth(g, 3), STATE_BEFORE_START);
    assert_int_equal(state_of_nth(g, 4), STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    int64_t last = g->b.ev[0].seq;
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(state_of_nth(g, 1), STATE_BEFORE_START);
    assert_int_equal(state_of_nth(g, 4), STATE_DELIVERED);
    c.lanes = 4; /* that it has other lanes since changes nothing */
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    assert_int_equal(state_of_nth(g, 3), STATE_BEFORE_START);
    assert_int_equal(state_of_nth(g, 4), STATE_DELIVERED);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    c.start = START_SEQ;
    c.start_seq = last + 2;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    for (int i = 0; i < 2; i++)
        emit(g->st, "1");
    assert_int_equal(state_of_nth(g, 4), STATE_BEFORE_START);
    /* it was told to start further ahead */
    assert_int_equal(state_of_nth(g, 5), STATE_BEFORE_START);
    assert_int_equal(state_of_nth(g, 6), STATE_PENDING);
    assert_int_equal(events(g, (struct event_query){.state = STATE_BEFORE_START + 1}).n, 5);
}

static void expired_claim_reads_as_pending(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 2);
    assert_int_equal(state_of_nth(g, 1), STATE_INFLIGHT);
    pass(LEASE + 1);
    assert_int_equal(state_of_nth(g, 1), STATE_PENDING);
    assert_int_equal(state_of_nth(g, 2), STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1); /* taken over: one at a time */
    struct outcome o = failed(g, 0, 1, 10);
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(state_of_nth(g, 1), STATE_FAILED);
    pass(10);
    for (int i = 0; i < 2; i++)
        assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(state_of_nth(g, 1), STATE_INFLIGHT);
    pass(LEASE + 1);
    assert_int_equal(state_of_nth(g, 1), STATE_FAILED);
}

/* refilter gives consumer c another filter; ret_f, which the caller frees, is what a worker needs
 * with it. */
static struct claim_request refilter(struct store_rig *g, const char *events, const char *where,
                                     struct filter **ret_f)
{
    struct error err;
    struct claim_request req = request("c", "me");
    struct consumer_spec c = {.name = "c",
                              .events = events,
                              .where = where,
                              .retry = "fast",
                              .order = ORDER_KEY,
                              .lanes = 1};
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    must(filter_new(events, where, ret_f, &err), &err);
    req.events = events;
    req.where = where;
    req.filter = *ret_f;
    return req;
}

static void event_is_shown_by_the_filter_it_was_handed_out_under(void **state)
{
    struct store_rig *g = *state;
    struct filter *f[3];
    struct claim_request req = refilter(g, "a.*", "", &f[0]);
    emit_with(g->st, "a.x", "1", "{\"v\":1}", 0);
    emit_with(g->st, "b.x", "2", "{\"v\":1}", 0);
    assert_int_equal(state_of_nth(g, 2), STATE_SKIPPED);
    assert_int_equal(claim_by(g, req), 1);
    assert_true(settle(g, "c", NULL, 0));
    claim_by(g, req);
    req = refilter(g, "b.*", "v = 2", &f[1]);
    assert_int_equal(state_of_nth(g, 1), STATE_DELIVERED); /* it was, whatever the filter is now */
    /* it matches now, and was never delivered */
    assert_int_equal(state_of_nth(g, 2), STATE_SKIPPED);
    emit_with(g->st, "b.x", "1", "{\"v\":1}", 0);
    emit_with(g->st, "b.x", "1", "{\"v\":2}", 0);
    emit_with(g->st, "a.x", "1", "{\"v\":2}", 0);
    assert_int_equal(state_of_nth(g, 3), STATE_SKIPPED);
    assert_int_equal(state_of_nth(g, 4), STATE_PENDING);
    assert_int_equal(state_of_nth(g, 5), STATE_SKIPPED);
    assert_int_equal(claim_by(g, req), 1);
    assert_int_equal(state_of_nth(g, 4), STATE_INFLIGHT);
    assert_true(settle(g, "c", NULL, 0));
    claim_by(g, req);
    refilter(g, "", "", &f[2]);
    static const enum delivery_state want[] = {STATE_DELIVERED, STATE_SKIPPED, STATE_SKIPPED,
                                               STATE_DELIVERED, STATE_SKIPPED};
    for (int i = 0; i < 5; i++)
        assert_int_equal(state_of_nth(g, i + 1), want[i]);
    for (int i = 0; i < 3; i++)
        filter_free(f[i]);
}

static void failed_event_is_delivered_although_the_filter_changed_meanwhile(void **state)
{
    struct store_rig *g = *state;
    struct filter *f[2];
    struct claim_request req = refilter(g, "a.*", "", &f[0]);
    emit_with(g->st, "a.x", "1", "{}", 0);
    assert_int_equal(claim_by(g, req), 1);
    struct outcome o = failed(g, 0, 1, 10);
    assert_true(settle(g, "c", &o, 1));
    req = refilter(g, "b.*", "", &f[1]);
    assert_int_equal(state_of_nth(g, 1), STATE_FAILED);
    pass(10);
    assert_int_equal(claim_by(g, req), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(state_of_nth(g, 1), STATE_DELIVERED);
    for (int i = 0; i < 2; i++)
        filter_free(f[i]);
}

static void claim_taken_over_under_another_filter_is_shown_as_it_ends(void **state)
{
    struct store_rig *g = *state;
    struct filter *f[2];
    struct claim_request req = refilter(g, "a.*", "", &f[0]);
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "b.x", "2", "{}", 0);
    emit_with(g->st, "a.x", "3", "{}", 0);
    /* its worker dies, perhaps before it delivered anything */
    assert_int_equal(claim_by(g, req), 2);
    req = refilter(g, "b.*", "", &f[1]);
    pass(LEASE + 1);
    req.owner = "other";
    assert_int_equal(claim_by(g, req), 1);
    assert_string_equal(g->b.ev[0].type.p, "b.x");
    assert_int_equal(state_of_nth(g, 2), STATE_INFLIGHT);
    assert_true(settle_by(g, "c", "other", NULL, 0));
    /* nobody knows; and nobody will deliver it */
    assert_int_equal(state_of_nth(g, 1), STATE_SKIPPED);
    assert_int_equal(state_of_nth(g, 2), STATE_DELIVERED);
    assert_int_equal(state_of_nth(g, 3), STATE_SKIPPED);
    for (int i = 0; i < 2; i++)
        filter_free(f[i]);
}

static void events_can_be_found_by_type_key_state_and_id(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "b.x", "2", "{}", 0);
    assert_int_equal(events(g, (struct event_query){.type = "a.*"}).n, 1);
    assert_int_equal(events(g, (struct event_query){.type = "*"}).n, 2);
    assert_int_equal(
        events(g, (struct event_query){.aggregate_type = STR("t"), .aggregate_id = STR("2")}).n, 1);
    assert_int_equal(events(g, (struct event_query){.state = STATE_PENDING + 1}).n, 2);
    assert_int_equal(events(g, (struct event_query){.state = STATE_DELIVERED + 1}).n, 0);
    assert_int_equal(claim(g, "c"), 2);
    char id[UUID_TEXT + 1], seq[24];
    snprintf(id, sizeof id, "%s", g->b.ev[1].id.p);
    snprintf(seq, sizeof seq, "%lld", (long long)g->b.ev[1].seq);
    assert_int_equal(events(g, (struct event_query){.id = id}).n, 1);
    assert_int_equal(events(g, (struct event_query){.id = seq}).n, 1);
    assert_int_equal(events(g, (struct event_query){.id = "nope"}).n, 0);
    assert_int_equal(events(g, (struct event_query){.limit = 1}).n, 1);
}

static struct consumer_gauge gauge(struct store_rig *g, const char *name)
{
    struct consumer_gauge ret;
    struct error err;
    must(g->st->ops->consumer_gauge(g->st, name, &g->a, &ret, &err), &err);
    return ret;
}

static void gauge_tells_what_is_behind_by_type(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_gauge nothing = {0};
    put(g->st, "c");
    emit_with(g->st, "order.paid", "1", "1", 0);
    kill_one(g);
    int64_t first = gauge(g, "c").now_ms;
    emit_with(g->st, "order.paid", "1", "1", 0);
    emit_with(g->st, "order.made", "2", "1", 0);
    emit_with(g->st, "order.paid", "3", "1", 0);
    pass(1000);
    struct consumer_gauge c = gauge(g, "c");
    assert_true(c.behind >= 3);
    assert_int_equal(c.probed, 3);
    assert_int_equal(c.n_types, 2);
    assert_string_equal(c.type[0].type, "order.paid");
    assert_int_equal(c.type[0].n, 2);
    assert_true(c.type[0].oldest_at >= first && c.type[0].oldest_at <= c.now_ms - 1000);
    assert_string_equal(c.type[1].type, "order.made");
    assert_int_equal(c.dead, 1);
    assert_int_equal(c.parked, 0);
    assert_false(c.paused);
    assert_string_equal(c.events, "");

    assert_int_equal(claim(g, "c"), 3);
    struct outcome o[] = {failed(g, 1, 1, 60000)};
    assert_true(settle(g, "c", o, 1));
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    c = gauge(g, "c");
    assert_int_equal(c.probed, 0);
    assert_int_equal(c.behind, 0);
    assert_int_equal(c.parked, 1);
    assert_true(c.paused);
    assert_int_equal(g->st->ops->consumer_gauge(g->st, "nobody", &g->a, &nothing, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
}

static void gauge_looks_at_no_more_than_so_many_events(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->begin(g->st, &err), &err);
    for (int i = 0; i < STORE_PROBE_EVENTS + 50; i++)
        emit_with(g->st, i < 5 ? "old" : "new", NULL, "1", 0);
    must(g->st->ops->commit(g->st, &err), &err);
    struct consumer_gauge c = gauge(g, "c");
    assert_true(c.behind >= STORE_PROBE_EVENTS + 50);
    assert_int_equal(c.probed, STORE_PROBE_EVENTS);
    assert_int_equal(c.n_types, 2);
    assert_string_equal(c.type[0].type, "new");
    assert_int_equal(c.type[1].n, 5);
}

static void behind_counts_what_filter_and_lanes_leave(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = {
        .name = "c", .events = "a.*", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 4};
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    struct filter *f;
    must(filter_new("a.*", "", &f, &err), &err);
    char key[8];
    for (int i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "%d", i);
        emit_with(g->st, i % 3 ? "a.x" : "b.x", key, "{}", 0);
    }
    assert_int_equal(look(g, "c").behind, 40);
    assert_true(look(g, "c").behind_exact);
    struct claim_request req = request_as("c", "me", ORDER_KEY, 4);
    req.events = "a.*";
    req.filter = f;
    req.lane_hint = 1;
    size_t n = claim_by(g, req); /* one lane goes ahead, the others stay */
    assert_true(n > 0);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.behind, 40 - n);
    assert_int_equal(i.inflight, n);
    assert_int_equal(i.claims, 1);
    assert_int_equal(gauge(g, "c").behind, 40 - n);
    assert_true(settle(g, "c", NULL, 0));
    i = look(g, "c");
    assert_int_equal(i.behind, 40 - n);
    assert_int_equal(i.inflight, 0);
    assert_int_equal(i.delivered, n);
    filter_free(f);
}

static void behind_asks_the_predicate(void **state)
{
    struct store_rig *g = *state;
    struct filter *f;
    struct claim_request req = refilter(g, "", "v = 1", &f);
    for (int i = 0; i < 10; i++)
        emit_with(g->st, "a", NULL, i % 2 ? "{\"v\":1}" : "{\"v\":2}", 0);
    assert_int_equal(look(g, "c").behind, 5);
    assert_true(look(g, "c").behind_exact);
    req.max_events = 4;
    size_t n = claim_by(g, req);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.inflight, n);
    assert_int_equal(i.behind, 5 - n);
    filter_free(f);
}

static void expired_claim_is_behind_again_and_not_in_flight(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, NULL);
    assert_int_equal(claim(g, "c"), 3);
    assert_int_equal(look(g, "c").inflight, 3);
    assert_int_equal(look(g, "c").behind, 0);
    pass(LEASE + 1);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.inflight, 0);
    assert_int_equal(i.claims, 0);
    assert_int_equal(i.behind, 3);
    assert_true(i.oldest_at > 0);
    /* taken over: all three are parked now, and one of them in flight */
    assert_int_equal(claim(g, "c"), 1);
    i = look(g, "c");
    assert_int_equal(i.inflight, 1);
    assert_int_equal(i.parked, 2);
    assert_int_equal(i.behind, 0);
}

static void large_backlog_is_counted_about(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->begin(g->st, &err), &err);
    for (int i = 0; i < STORE_COUNT_EVENTS + 500; i++)
        emit_with(g->st, "a", NULL, "1", 0);
    must(g->st->ops->commit(g->st, &err), &err);
    struct consumer_info i = look(g, "c");
    assert_false(i.behind_exact);
    assert_int_equal(i.behind, STORE_COUNT_EVENTS + 500);
}

static void sink_is_down_since_it_was_first(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->consumer_report(g->st, "c", "sink is down: HTTP 502", &err), &err);
    struct consumer_info i = look(g, "c");
    int64_t since = i.report_at;
    assert_true(i.down);
    assert_true(since > 0);
    pass(5000);
    must(g->st->ops->consumer_report(g->st, "c", "sink is down: timed out", &err), &err);
    i = look(g, "c");
    assert_string_equal(i.report, "sink is down: timed out");
    assert_int_equal(i.report_at, since);
    assert_int_equal(gauge(g, "c").down_since, since);
    must(g->st->ops->consumer_report(g->st, "c", NULL, &err), &err);
    assert_false(look(g, "c").down);
    assert_int_equal(gauge(g, "c").down_since, 0);
}

static void why_it_was_paused_is_over_with_the_pause(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    must(g->st->ops->consumer_report(g->st, "c", "paused: HTTP 410", &err), &err);
    assert_string_equal(look(g, "c").last_error, "paused: HTTP 410");
    must(g->st->ops->consumer_pause(g->st, "c", false, &err), &err);
    assert_null(look(g, "c").last_error);
    must(g->st->ops->consumer_report(g->st, "c", "sink is down: x", &err), &err);
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    must(g->st->ops->consumer_pause(g->st, "c", false, &err), &err);
    assert_true(look(g, "c").down); /* that is for its relay to take back */
}

static void info_tells_head_tail_and_dead(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store_info i;
    must(g->st->ops->info(g->st, &i, &err), &err);
    assert_int_equal(i.events, 0);
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    must(g->st->ops->info(g->st, &i, &err), &err);
    assert_int_equal(i.events, 2);
    assert_int_equal(i.head, i.tail + 1);
    assert_int_equal(i.consumers, 1);
    assert_int_equal(i.oldest_at, store_now.wall);
    assert_int_equal(look(g, "c").behind, 2);
    assert_int_equal(look(g, "c").oldest_at, store_now.wall);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(dead_letter_is_kept_whole_and_survives_trimming),
    ON_A_STORE(event_that_waits_for_its_next_attempt_gets_it_when_told),
    ON_A_STORE(retried_letter_is_gone_once_delivered_and_back_when_it_dies_again),
    ON_A_STORE(dropped_letter_is_gone),
    ON_A_STORE(new_consumer_starts_where_it_is_told),
    ON_A_STORE(registering_again_keeps_the_position),
    ON_A_STORE(order_and_lanes_change_only_when_through),
    ON_A_STORE(only_a_worker_with_the_registered_filter_gets_anything),
    ON_A_STORE(settings_that_were_replaced_do_not_come_back_by_themselves),
    ON_A_STORE(predicate_order_and_lanes_that_were_replaced_do_not_come_back),
    ON_A_STORE(retry_policy_changes_freely),
    ON_A_STORE(operator_brings_settings_back_on_purpose),
    ON_A_STORE(refused_settings_change_nothing),
    ON_A_STORE(only_one_that_starts_makes_a_consumer),
    ON_A_STORE(consumer_made_anew_has_no_past),
    ON_A_STORE(as_many_settings_are_remembered_as_it_says),
    ON_A_STORE(start_ahead_of_the_head_survives_a_change_of_lanes),
    ON_A_STORE(paused_consumer_gets_nothing_until_resumed),
    ON_A_STORE(consumer_with_something_to_lose_is_removed_only_by_force),
    ON_A_STORE(claim_of_a_removed_consumer_is_none_of_the_one_made_anew),
    ON_A_STORE(bad_consumer_names_are_refused),
    ON_A_STORE(report_is_shown_until_cleared),
    ON_A_STORE(trim_takes_old_events_that_everyone_is_past),
    ON_A_STORE(event_delivered_late_is_kept_for_the_retention_time_after_its_delivery),
    ON_A_STORE(retention_counts_from_the_delivery_to_the_last_consumer),
    ON_A_STORE(retention_counts_from_the_end_of_a_retry),
    ON_A_STORE(never_trimmed_before_nothing_goes_until_the_retention_time_from_now),
    ON_A_STORE(consumer_made_anew_holds_events_until_it_has_had_them_long_enough),
    ON_A_STORE(consumer_that_starts_at_the_end_does_not_hold_what_was_before_it),
    ON_A_STORE(removed_consumer_frees_what_the_others_had_long_ago),
    ON_A_STORE(clock_that_was_ahead_keeps_nothing_for_longer_than_the_retention_time_from_now),
    ON_A_STORE(idempotency_key_is_remembered_for_as_long_as_its_event_is_kept),
    ON_A_STORE(trim_leaves_what_a_position_a_claim_or_a_parked_event_needs),
    ON_A_STORE(trim_without_consumers_keeps_everything),
    ON_A_STORE(trim_works_in_small_batches),
    ON_A_STORE(old_idempotency_keys_are_trimmed_and_free_again),
    ON_A_STORE(every_state_of_the_contract_is_shown),
    ON_A_STORE(dropped_dead_letter_is_shown_as_dropped),
    ON_A_STORE(consumer_made_anew_knows_nothing_of_what_was_dropped),
    ON_A_STORE(events_from_before_the_start_are_shown_as_such),
    ON_A_STORE(expired_claim_reads_as_pending),
    ON_A_STORE(event_is_shown_by_the_filter_it_was_handed_out_under),
    ON_A_STORE(failed_event_is_delivered_although_the_filter_changed_meanwhile),
    ON_A_STORE(claim_taken_over_under_another_filter_is_shown_as_it_ends),
    ON_A_STORE(events_can_be_found_by_type_key_state_and_id),
    ON_A_STORE(gauge_tells_what_is_behind_by_type),
    ON_A_STORE(gauge_looks_at_no_more_than_so_many_events),
    ON_A_STORE(behind_counts_what_filter_and_lanes_leave),
    ON_A_STORE(behind_asks_the_predicate),
    ON_A_STORE(expired_claim_is_behind_again_and_not_in_flight),
    ON_A_STORE(large_backlog_is_counted_about),
    ON_A_STORE(sink_is_down_since_it_was_first),
    ON_A_STORE(why_it_was_paused_is_over_with_the_pause),
    ON_A_STORE(info_tells_head_tail_and_dead),
};

const struct store_tests store_admin_tests = STORE_TESTS(tests);
