/* preload.c: for LD_PRELOAD over the binary: makes the n-th allocation fail, from main() on.
 *
 *   FAIL_AT=N         the N-th allocation fails (0: none, they are only counted)
 *   FAIL_LASTING=1    and all that follow it
 *   FAIL_WHOSE=ours   only allocations of the binary itself; otherwise those of its libraries, too
 *   FAIL_REPORT=FILE  receives the number of allocations at the end of the process, and whether one
 *                     failed
 *
 * Nothing here allocates. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef int main_function(int argc, char **argv, char **envp);

EXPORT void *malloc(size_t n);
EXPORT void *calloc(size_t n, size_t size);
EXPORT void *realloc(void *p, size_t n);
EXPORT void *reallocarray(void *p, size_t n, size_t size);
EXPORT char *strdup(const char *s);
EXPORT int __libc_start_main(main_function *main, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end);

static void *(*next_malloc)(size_t), *(*next_calloc)(size_t, size_t),
    *(*next_realloc)(void *, size_t);
static main_function *real_main;
static atomic_bool counting, hit;
static atomic_long calls;
static long at;
static bool lasting, only_ours;
static uintptr_t text_start, text_end;
static const char *report;

/* A first call may be from dlsym itself, before there is a function to pass it on to. */
static char early[4096];
static size_t early_used;

static void *from_early(size_t n)
{
    size_t start = early_used;
    n = (n + 15) & ~(size_t)15;
    if (n > sizeof early - start)
        return NULL;
    early_used += n;
    return early + start;
}

static bool is_early(const void *p)
{
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void find_next(void)
{
    static bool busy;
    if (next_realloc || busy)
        return;
    busy = true;
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    next_calloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    next_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    busy = false;
}

/* find_binary learns where the code of the binary itself is. */
static void find_binary(void)
{
    const ElfW(Phdr) *ph = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    unsigned long n = getauxval(AT_PHNUM);
    uintptr_t base = (uintptr_t)ph - sizeof(ElfW(Ehdr));
    for (unsigned long i = 0; i < n; i++)
        if (ph[i].p_type == PT_PHDR)
            base = (uintptr_t)ph - ph[i].p_vaddr;
    for (unsigned long i = 0; i < n; i++) {
        if (ph[i].p_type != PT_LOAD || !(ph[i].p_flags & PF_X))
            continue;
        text_start = base + ph[i].p_vaddr;
        text_end = text_start + ph[i].p_memsz;
    }
}

static bool fails(const void *caller)
{
    if (!atomic_load(&counting))
        return false;
    if (only_ours && ((uintptr_t)caller < text_start || (uintptr_t)caller >= text_end))
        return false;
    long n = atomic_fetch_add(&calls, 1) + 1;
    if (!at || n < at || (n > at && !lasting))
        return false;
    atomic_store(&hit, true);
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    find_next();
    if (fails(__builtin_return_address(0)))
        return NULL;
    return next_malloc ? next_malloc(n) : from_early(n);
}

void *calloc(size_t n, size_t size)
{
    find_next();
    if (fails(__builtin_return_address(0)))
        return NULL;
    return next_calloc ? next_calloc(n, size) : from_early(n * size);
}

void *realloc(void *p, size_t n)
{
    find_next();
    if (fails(__builtin_return_address(0)))
        return NULL;
    if (!is_early(p) && next_realloc)
        return next_realloc(p, n);
    void *copy = next_malloc ? next_malloc(n) : from_early(n);
    if (copy && p)
        memcpy(copy, p, n < (size_t)(early + sizeof early - (char *)p) ? n : 0);
    return copy;
}

void *reallocarray(void *p, size_t n, size_t size)
{
    find_next();
    if (fails(__builtin_return_address(0)))
        return NULL;
    if (size && n > SIZE_MAX / size)
        return NULL;
    return next_realloc ? next_realloc(p, n * size) : NULL;
}

char *strdup(const char *s)
{
    find_next();
    if (fails(__builtin_return_address(0)))
        return NULL;
    size_t n = strlen(s) + 1;
    char *copy = next_malloc ? next_malloc(n) : from_early(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

static void tell(void)
{
    char line[64];
    atomic_store(&counting, false);
    int n = snprintf(line, sizeof line, "%ld %d\n", atomic_load(&calls), atomic_load(&hit));
    int fd = open(report, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        _exit(99);
    close(fd);
}

static int counted_main(int argc, char **argv, char **envp)
{
    const char *number = getenv("FAIL_AT"), *whose = getenv("FAIL_WHOSE");
    report = getenv("FAIL_REPORT");
    if (!number || !report)
        return real_main(argc, argv, envp);
    at = atol(number);
    lasting = getenv("FAIL_LASTING") != NULL;
    only_ours = whose && strcmp(whose, "ours") == 0;
    find_binary();
    atexit(tell);
    unsetenv("LD_PRELOAD"); /* children are not at issue */
    atomic_store(&counting, true);
    return real_main(argc, argv, envp);
}

int __libc_start_main(main_function *main, int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    int (*start)(main_function *, int, char **, void (*)(void), void (*)(void), void (*)(void),
                 void *);
    start = (int (*)(main_function *, int, char **, void (*)(void), void (*)(void), void (*)(void),
                     void *))dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main;
    return start(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
