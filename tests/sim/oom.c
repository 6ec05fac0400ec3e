/* oom.c: memory runs out, as told. The linker sends every allocation of our own code here (--wrap), and what it takes from an
 * arena, too: nearly all of that needs no new block, and would never be seen to fail. */
#include <stdlib.h>

#include "base/arena.h"
#include "sim.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__real_arena_alloc(struct arena *a, size_t n);
void *__real_arena_zalloc(struct arena *a, size_t count, size_t size);
char *__real_arena_raw(struct arena *a, size_t n);
char *__real_arena_bytes(struct arena *a, const void *p, size_t n);
void *__wrap_arena_alloc(struct arena *a, size_t n);
void *__wrap_arena_zalloc(struct arena *a, size_t count, size_t size);
char *__wrap_arena_raw(struct arena *a, size_t n);
char *__wrap_arena_bytes(struct arena *a, const void *p, size_t n);

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

void *__wrap_arena_alloc(struct arena *a, size_t n)
{
    return fails() ? NULL : __real_arena_alloc(a, n);
}

void *__wrap_arena_zalloc(struct arena *a, size_t count, size_t size)
{
    return fails() ? NULL : __real_arena_zalloc(a, count, size);
}

char *__wrap_arena_raw(struct arena *a, size_t n)
{
    return fails() ? NULL : __real_arena_raw(a, n);
}

char *__wrap_arena_bytes(struct arena *a, const void *p, size_t n)
{
    return fails() ? NULL : __real_arena_bytes(a, p, n);
}
