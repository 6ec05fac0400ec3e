/* handlers_outside.c: effects outside a handler's transaction: sent letters, handlers without a
 * transaction, and messages received in another way. */
#include "handlers_rig.h"

/* A message arrives in another way: from a queue, or as a webhook. */
static void inbox_record_rolls_back_with_the_callers_transaction(void **state)
{
    int first = -1;
    OK(db_once(*state, "m1", "a", false, &first, &err));
    assert_int_equal(first, 1);
    OK(db_once(*state, "m1", "a", true, &first,
               &err)); /* a rolled-back message was never handled */
    assert_int_equal(first, 1);
    OK(db_once(*state, "m1", "a", true, &first, &err));
    assert_int_equal(first, 0);
    OK(db_once(*state, "m2", "a", true, &first, &err));
    assert_int_equal(first, 1);
    assert_int_equal(db_once(*state, "m1", "b", true, &first, &err), -1);
    assert_int_equal(err.code, OUTBOX_CONFLICT);
    assert_int_equal(db_once_bare(*state, "m3", &first, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    assert_int_equal(db_once(*state, "", "a", true, &first, &err), -1);
    assert_int_equal(err.code, OUTBOX_INVALID);
    exact("queue", 2, -1);
}

struct letters {
    atomic_int sent, fail_first;
    bool had_tx;
};

static outbox_verdict send_letter(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct letters *l = ctx;
    (void)ev;
    l->had_tx = l->had_tx || outbox_tx_sqlite(tx) || outbox_tx_pg(tx) || outbox_tx_mariadb(tx);
    if (l->fail_first > 0 && l->fail_first--)
        return outbox_fail(tx, OUTBOX_RETRY, "no stamps");
    l->sent++;
    return OUTBOX_DONE;
}

static void external_handler_is_recorded_after_its_action(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct letters l = {.fail_first = round ? 0 : 2};
        struct script stock = {.name = "stock", .what = FAIL, .at = 3, .times = 1};
        outbox *ob = db_open(NULL);
        outbox_consumer *c = consumer(ob, "c");
        OK(outbox_consumer_set(c, "fate", "shared", &err));
        handler(c, &stock);
        OK(outbox_add_handler(c, "mail", "e", send_letter, &l, OUTBOX_EXTERNAL, &err));
        if (!round)
            emit(ob, 8);
        through(ob);
        outbox_close(ob);
        assert_int_equal(l.sent, round ? 0 : 8);
        assert_false(l.had_tx);
        exact("stock", 8, -1);
        assert_int_equal(db_number("SELECT count(*) FROM @handled"), 16);
        forget_positions();
    }
}

static outbox_verdict plain(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    int first;
    m.type = "x";
    (void)ev;
    if (outbox_tx_sqlite(tx) || outbox_tx_pg(tx) || outbox_tx_mariadb(tx))
        return OUTBOX_REJECT;
    if (outbox_tx_emit(tx, &m, NULL, &err) == 0 || err.code != OUTBOX_MISUSE)
        return OUTBOX_REJECT;
    if (outbox_handle_once(tx, "h", "k", NULL, 0, &first, &err) == 0 || err.code != OUTBOX_MISUSE)
        return OUTBOX_REJECT;
    (*(atomic_int *)ctx)++;
    return OUTBOX_DONE;
}

static void plain_handler_runs_without_a_transaction(void **state)
{
    atomic_int calls = 0;
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_on(c, "e", plain, &calls, &err));
    emit(*state, 3);
    through(*state);
    assert_int_equal(calls, 3);
    assert_int_equal(db_number("SELECT count(*) FROM @handled"), 0);
}

static const struct CMUnitTest tests[] = {
    ON(inbox_record_rolls_back_with_the_callers_transaction),
    ON(external_handler_is_recorded_after_its_action),
    ON(plain_handler_runs_without_a_transaction),
};

const struct suite_part handlers_outside_tests = SUITE_PART(tests);
