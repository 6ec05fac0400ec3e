/*
** outbox_test.h: for the tests of applications that use liboutbox.
**
**     outbox *ob;
**     outbox_test_open(&ob, &err);           an outbox in memory, with a clock that can be moved
**     ... register consumers and handlers, call the code under test, which emits ...
**     outbox_test_deliver(ob, NULL, &err);   deliver everything now, with all retries and delays
**     assert(outbox_test_count(ob, "order.*", "42", NULL, &err) == 1);
**     outbox_close(ob);
**
** Not for production: the clock skips the time between deliveries.
*/
#ifndef OUTBOX_TEST_H
#define OUTBOX_TEST_H

#include <outbox.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
** CAPI: An outbox for tests
**
** outbox_test_open opens sqlite::memory: with a clock that outbox_test_advance moves forward.
** Leases, retries, delays and retention follow that clock. Everything in outbox.h works as on any
** other outbox.
*/
OUTBOX_API int outbox_test_open(outbox **ret, outbox_error *err);
OUTBOX_API void outbox_test_advance(outbox *ob, int64_t ms);

/*
** CAPI: Deliver everything now
**
** outbox_test_deliver delivers as outbox_step does, moves the clock to the next retry or delay and
** delivers again, until nothing is left to deliver. An event still undelivered then is a dead
** letter, or its consumer is paused. Returns 0; -1 with the last failure if a delivery failed.
** *ret_delivered (may be NULL) is always set.
*/
OUTBOX_API int outbox_test_deliver(outbox *ob, size_t *ret_delivered, outbox_error *err);

/*
** CAPI: What was emitted
**
** outbox_test_count returns the number of events of a type ("order.*") with an aggregate_id and
** with payload_part in their payload; NULL matches any. Returns -1 if it fails.
**
** outbox_test_each calls `visit` for each event, oldest first, until it returns non-zero.
*/
OUTBOX_API int outbox_test_count(outbox *ob, const char *type, const char *aggregate_id,
                                 const char *payload_part, outbox_error *err);
OUTBOX_API int outbox_test_each(outbox *ob, int (*visit)(void *ctx, const outbox_event *ev),
                                void *ctx, outbox_error *err);

#ifdef __cplusplus
}
#endif
#endif
