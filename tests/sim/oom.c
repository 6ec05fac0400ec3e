/* oom.c: memory runs out, as told. The linker sends every allocation of our own code here (--wrap). */
#include <stdlib.h>

#include "sim.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static int left;
static bool failed;

void oom_arm(int n)
{
    left = n;
    failed = false;
}

bool oom_disarm(void)
{
    bool did = failed;
    left = 0;
    failed = false;
    return did;
}

static bool fails(void)
{
    if (left == 0 || --left > 0) return false;
    return failed = true;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}
