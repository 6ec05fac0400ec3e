#include "suite.h"

#include <stdlib.h>
#include <string.h>

int suite_run(const char *name, const struct suite_part *parts, size_t n_parts)
{
    size_t n = 0;
    for (size_t i = 0; i < n_parts; i++)
        n += parts[i].n;

    struct CMUnitTest *all = calloc(n, sizeof *all);
    if (!all)
        return 1;

    size_t at = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].n)
            memcpy(all + at, parts[i].tests, parts[i].n * sizeof *all);
        at += parts[i].n;
    }

    int failures = _cmocka_run_group_tests(name, all, n, NULL, NULL);
    free(all);
    return failures;
}
