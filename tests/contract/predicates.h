/* predicates.h: a predicate gives the same result in SQL and in C. */
#ifndef TESTS_CONTRACT_PREDICATES_H
#define TESTS_CONTRACT_PREDICATES_H

#include <stdbool.h>

/* How a store evaluates predicates in SQL. */
struct predicates_sql {
    /* ask returns 0 or 1; 2 if SQL cannot decide */
    int (*ask)(void *db, const char *predicate, const char *payload);
    void *db;
    /* cannot tells whether SQL may fail to decide; NULL: it always decides */
    bool (*cannot)(const char *predicate);
    bool deep;   /* SQL accepts payloads nested too deep for a relay */
    bool parses; /* SQL returns 2 for an invalid predicate */
};

/* predicates_compare evaluates random predicates and payloads both ways, and fails the test where
 * they differ. */
void predicates_compare(const struct predicates_sql *sql);

#endif
