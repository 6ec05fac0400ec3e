/* predicates.h: a predicate gives the same result in SQL and in C. */
#ifndef TESTS_CONTRACT_PREDICATES_H
#define TESTS_CONTRACT_PREDICATES_H

#include <stdbool.h>

/* How a store evaluates predicates in SQL. */
struct predicates_sql {
    /* ask gives 0 or 1; 2: it cannot tell */
    int (*ask)(void *db, const char *predicate, const char *payload);
    void *db;
    /* cannot tells whether SQL need not be able to tell; NULL: it must always be */
    bool (*cannot)(const char *predicate);
    bool deep;   /* it can be given payloads that are nested too deep for a relay */
    bool parses; /* it returns 2 for a text that is no predicate */
};

/* predicates_compare asks both about random predicates and payloads, and fails the test where they
 * differ. */
void predicates_compare(const struct predicates_sql *sql);

#endif
