/* suite.h: a test program whose tests are in several files. Each file lists its tests as a part;
 * main runs the parts as one group. */
#ifndef TESTS_SUITE_H
#define TESTS_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct suite_part {
    const struct CMUnitTest *tests;
    size_t n;
};

#define SUITE_PART(array) \
    { \
        array, COUNT(array) \
    }

/* suite_run runs the tests of all parts, in order, as a group of that name. It returns the number
 * of failures. */
int suite_run(const char *name, const struct suite_part *parts, size_t n_parts);

#endif
