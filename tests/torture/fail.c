#include "fail.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"

#define LASTING_NS 50000000

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t max);
int __wrap_asprintf(char **ret, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int __wrap___asprintf_chk(char **ret, int flag, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void __wrap_free(void *p);
void *__real_arena_alloc(struct arena *a, size_t n);
void *__real_arena_zalloc(struct arena *a, size_t count, size_t size);
char *__real_arena_raw(struct arena *a, size_t n);
char *__real_arena_bytes(struct arena *a, const void *p, size_t n);
void *__wrap_arena_alloc(struct arena *a, size_t n);
void *__wrap_arena_zalloc(struct arena *a, size_t count, size_t size);
char *__wrap_arena_raw(struct arena *a, size_t n);
char *__wrap_arena_bytes(struct arena *a, const void *p, size_t n);

static atomic_uint armed;
static atomic_long calls, at, blocks, until;
static atomic_bool hit;
static enum fail_mode mode;
static sqlite3_mem_methods sqlite;

static long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

/* fails counts a call and returns whether it must fail. */
static bool fails(unsigned kind)
{
    if (!(atomic_load(&armed) & kind))
        return false;
    long n = atomic_fetch_add(&calls, 1) + 1, first = atomic_load(&at);
    if (!first || n < first || (n > first && mode == FAIL_ONCE))
        return false;
    if (n == first)
        atomic_store(&until, now_ns() + LASTING_NS);
    else if (now_ns() > atomic_load(&until))
        return false;
    atomic_store(&hit, true);
    errno = ENOMEM;
    return true;
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add(&blocks, 1);
    return p;
}

void *__wrap_malloc(size_t n)
{
    return fails(FAIL_OURS) ? NULL : counted(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails(FAIL_OURS) ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
    if (fails(FAIL_OURS))
        return NULL;
    void *grown = __real_realloc(p, n);
    return p ? grown : counted(grown);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / size)
        return NULL;
    return __wrap_realloc(p, n * size);
}

char *__wrap_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = __wrap_malloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

char *__wrap_strndup(const char *s, size_t max)
{
    size_t n = strnlen(s, max);
    char *copy = __wrap_malloc(n + 1);
    if (!copy)
        return NULL;
    copy[n] = 0;
    return memcpy(copy, s, n);
}

static int print_counted(char **ret, const char *fmt, va_list args)
{
    int n = fails(FAIL_OURS) ? -1 : vasprintf(ret, fmt, args);
    if (n >= 0)
        counted(*ret);
    return n;
}

int __wrap_asprintf(char **ret, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = print_counted(ret, fmt, args);
    va_end(args);
    return n;
}

/* asprintf is this function where _FORTIFY_SOURCE is defined. */
int __wrap___asprintf_chk(char **ret, int flag, const char *fmt, ...)
{
    va_list args;
    (void)flag;
    va_start(args, fmt);
    int n = print_counted(ret, fmt, args);
    va_end(args);
    return n;
}

/* Arena allocations fail as well. Nearly all of them need no new block, and would never fail
 * otherwise. */
void *__wrap_arena_alloc(struct arena *a, size_t n)
{
    return fails(FAIL_OURS) ? NULL : __real_arena_alloc(a, n);
}

void *__wrap_arena_zalloc(struct arena *a, size_t count, size_t size)
{
    return fails(FAIL_OURS) ? NULL : __real_arena_zalloc(a, count, size);
}

char *__wrap_arena_raw(struct arena *a, size_t n)
{
    return fails(FAIL_OURS) ? NULL : __real_arena_raw(a, n);
}

char *__wrap_arena_bytes(struct arena *a, const void *p, size_t n)
{
    return fails(FAIL_OURS) ? NULL : __real_arena_bytes(a, p, n);
}

void __wrap_free(void *p)
{
    if (p)
        atomic_fetch_sub(&blocks, 1);
    __real_free(p);
}

/* ---- SQLite ---- */

static void *sqlite_malloc(int n)
{
    return fails(FAIL_SQLITE) ? NULL : counted(sqlite.xMalloc(n));
}

static void *sqlite_realloc(void *p, int n)
{
    return fails(FAIL_SQLITE) ? NULL : sqlite.xRealloc(p, n);
}

static void sqlite_free(void *p)
{
    if (p)
        atomic_fetch_sub(&blocks, 1);
    sqlite.xFree(p);
}

void fail_setup(void)
{
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &sqlite);
    sqlite3_mem_methods ours = sqlite;
    ours.xMalloc = sqlite_malloc;
    ours.xRealloc = sqlite_realloc;
    ours.xFree = sqlite_free;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &ours);
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);
    sqlite3_initialize();
}

/* ---- the test's side ---- */

void fail_arm(unsigned kinds, long n, enum fail_mode how)
{
    atomic_store(&calls, 0);
    atomic_store(&at, n);
    atomic_store(&hit, false);
    mode = how;
    atomic_store(&armed, kinds);
}

bool fail_disarm(void)
{
    atomic_store(&armed, 0);
    return atomic_exchange(&hit, false);
}

long fail_blocks(void)
{
    return atomic_load(&blocks);
}
