/* sqlite_tests.h: the tests of the SQLite store alone, combined in test_store_sqlite.c. */
#ifndef TESTS_CONTRACT_SQLITE_TESTS_H
#define TESTS_CONTRACT_SQLITE_TESTS_H

#include "../suite.h"

extern const struct suite_part sqlite_emit_tests, sqlite_moved_tests, sqlite_disk_tests,
    sqlite_lanes_tests, sqlite_turns_tests, sqlite_work_tests;

#endif
