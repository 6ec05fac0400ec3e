/* test_suspect.c: which event is to blame if the process dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/suspect.h"

static const struct claim_lease mail = {"mail", "w1", 1, 1000, false};
static const struct claim_lease shop = {"shop", "w2", 2, 1000, false};

static void suspect_waits_for_other_batches_of_its_pipeline(void **state)
{
    (void)state;
    struct suspect s = {.due = true};
    assert_int_equal(suspect_ask(&s, 1), SUSPECT_WAIT);
    assert_int_equal(suspect_ask(&s, 0), SUSPECT_TAKE);
    s.due = false; /* none is known, so ask for one */
    assert_int_equal(suspect_ask(&s, 0), SUSPECT_WAIT);
}

static void pipelines_do_not_wait_for_each_others_deliveries(void **state)
{
    (void)state;
    struct suspects all;
    struct suspect_claim cleared[2];
    suspect_all_init(&all);
    struct suspect a = {.all = &all, .due = true}, b = {.all = &all, .due = true};
    assert_int_equal(suspect_ask(&a, 0), SUSPECT_TAKE);
    assert_int_equal(suspect_begin(&a, &mail, true, cleared), 0);
    assert_int_equal(suspect_ask(&b, 0), SUSPECT_BESIDE);
    assert_int_equal(suspect_ask(&a, 0),
                     SUSPECT_TAKE); /* its own suspect ends with the next claim */
    suspect_withdraw(&a);
    suspect_end(&a);
    assert_int_equal(suspect_ask(&b, 0), SUSPECT_TAKE);
    suspect_withdraw(&b);
    suspect_all_release(&all);
}

static void second_suspect_clears_the_first(void **state)
{
    (void)state;
    struct suspects all;
    struct suspect_claim cleared[2];
    suspect_all_init(&all);
    struct suspect a = {.all = &all}, b = {.all = &all}, c = {.all = &all};
    assert_int_equal(suspect_begin(&a, &mail, true, cleared), 0);
    assert_int_equal(suspect_begin(&b, &shop, false, cleared), 1);
    assert_string_equal(cleared[0].consumer, "mail");
    assert_string_equal(cleared[0].owner, "w1");
    assert_int_equal(cleared[0].epoch, 1);
    assert_int_equal(suspect_begin(&c, &shop, false, cleared), 0); /* already cleared */
    suspect_all_release(&all);
}

/* The other thread: begins the delivery of its suspect as soon as that is allowed. */
struct other {
    struct suspect s;
    atomic_bool began;
    size_t cleared;
};

static void *begin_beside(void *arg)
{
    struct other *o = arg;
    struct suspect_claim cleared[2];
    o->cleared = suspect_begin(&o->s, &shop, false, cleared);
    atomic_store(&o->began, true);
    return NULL;
}

/* Otherwise it could kill the process after the claim, before its worker knows which suspect it
 * got. */
static void suspect_does_not_begin_while_another_is_being_claimed(void **state)
{
    (void)state;
    struct suspects all;
    struct suspect_claim cleared[2];
    pthread_t thread;
    suspect_all_init(&all);
    struct suspect a = {.all = &all, .due = true};
    struct other o = {.s.all = &all};
    assert_int_equal(suspect_ask(&a, 0), SUSPECT_TAKE);
    assert_int_equal(pthread_create(&thread, NULL, begin_beside, &o), 0);
    usleep(20000); /* long enough for the other thread to begin */
    assert_false(atomic_load(&o.began));
    assert_int_equal(suspect_begin(&a, &mail, true, cleared), 0);
    pthread_join(thread, NULL);
    assert_int_equal(o.cleared, 1); /* it clears the claim that was blamed */
    assert_false(suspect_all_absolve(&all, cleared));
    suspect_all_release(&all);
}

static void stopping_the_process_clears_the_event_in_flight(void **state)
{
    (void)state;
    struct suspects all;
    struct suspect_claim cleared[2];
    suspect_all_init(&all);
    struct suspect a = {.all = &all};
    assert_false(suspect_all_absolve(&all, cleared));
    suspect_begin(&a, &mail, true, cleared);
    assert_true(suspect_all_absolve(&all, cleared));
    struct claim_lease l = suspect_lease(cleared);
    assert_true(l.absolve);
    assert_int_equal(l.epoch, 1);
    assert_int_equal(l.lease_ms, 1000);
    assert_false(suspect_all_absolve(&all, cleared));
    suspect_end(&a);
    suspect_all_release(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(suspect_waits_for_other_batches_of_its_pipeline),
        cmocka_unit_test(pipelines_do_not_wait_for_each_others_deliveries),
        cmocka_unit_test(second_suspect_clears_the_first),
        cmocka_unit_test(suspect_does_not_begin_while_another_is_being_claimed),
        cmocka_unit_test(stopping_the_process_clears_the_event_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
