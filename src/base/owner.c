#include "base/owner.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#define STAT_TEXT 1024

/* A process as the kernel reports it. */
struct process {
    char state;
    long threads;
    unsigned long long start; /* in ticks since boot */
};

/* Reads the beginning of a file in /proc; false on failure. */
static bool read_text(const char *path, char *out, size_t size)
{
    ssize_t n = fd_read_file(path, out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Reads /proc/PID/stat: see proc(5). The program's name, in brackets, may contain any character.
 * Returns false if it cannot be read. */
static bool look_up(long pid, struct process *ret)
{
    char path[64], text[STAT_TEXT];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    if (!read_text(path, text, sizeof text))
        return false;
    const char *after_name = strrchr(text, ')');
    if (!after_name)
        return false;
    int n = sscanf(
        after_name + 1,
        " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
        &ret->state, &ret->threads, &ret->start);
    return n == 3;
}

/* Returns a number for this boot of this machine and our pid namespace; 0 if unknown. */
static uint32_t this_machine(void)
{
    char boot[64];
    struct stat pids;
    if (!read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot))
        return 0;
    if (stat("/proc/self/ns/pid", &pids) != 0)
        return 0;

    uint64_t hash = hash_add(HASH_INIT, str_of(boot));
    hash = hash_add(hash, (struct str){(const char *)&pids.st_ino, sizeof pids.st_ino});
    return (uint32_t)hash_end(hash);
}

void owner_make(char out[OWNER_TEXT], uint64_t random)
{
    char host[65] = "";
    struct process self;
    gethostname(host, sizeof host - 1);
    int n = snprintf(out, OWNER_TEXT, "%s:%ld:%08x", host, (long)getpid(), (unsigned)random);
    uint32_t machine = this_machine();
    if (machine != 0 && look_up((long)getpid(), &self))
        snprintf(out + n, OWNER_TEXT - (size_t)n, ":%08x-%llx", machine, self.start);
}

bool owner_gone(const char *owner)
{
    const char *place = strrchr(owner, ':');
    long pid;
    unsigned machine;
    unsigned long long start;
    if (!place || sscanf(place, ":%8x-%llx", &machine, &start) != 2)
        return false;

    const char *host_end = strchr(owner, ':');
    if (sscanf(host_end, ":%ld:", &pid) != 1 || pid <= 0)
        return false;
    bool here = machine != 0 && machine == this_machine();
    if (!here)
        return false;

    struct process p;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return true;
    if (!look_up(pid, &p))
        return false;
    bool zombie = p.state == 'Z' && p.threads <= 1; /* it has not been reaped yet */
    return p.start != start || zombie;
}
