/* pg_tests.h: the tests of the PostgreSQL store alone, combined in test_store_postgres.c. */
#ifndef TESTS_CONTRACT_PG_TESTS_H
#define TESTS_CONTRACT_PG_TESTS_H

#include "store_impl.h"

extern const struct suite_part pg_random_tests, pg_wakeup_tests, pg_turns_tests, pg_ahead_tests,
    pg_lanes_tests, pg_waiting_tests, pg_retried_tests;

#endif
