/* full_event.h: an event with every field set. */
#ifndef TESTS_UNIT_FULL_EVENT_H
#define TESTS_UNIT_FULL_EVENT_H

#include "event/event.h"

static const struct event full = {
    .seq = 42,
    .id = STR("0197c9a2-5b1e-7c3a-9f00-1234567890ab"),
    .type = STR("order.created"),
    .aggregate_type = STR("order"),
    .aggregate_id = STR("17"),
    .payload = STR("{\"total\": 5.00}"),
    .headers = STR("{\"trace\":\"abc\"}"),
    .tenant = STR("acme"),
    .version = 3,
    .has_version = true,
    .created_at = INT64_C(1767323045678),
};

#endif
