/* process.c: reads the metrics of this process from the kernel. */
#include "admin/process.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double cpu_seconds(void)
{
    struct rusage u = {0};
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* open_files counts the entries of /proc/self/fd. */
static int open_files(void)
{
    int n = -1; /* do not count the directory we read */
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    const struct dirent *e;
    while ((e = readdir(d)))
        if (e->d_name[0] != '.')
            n++;
    closedir(d);
    return n;
}

/* boot_time compares two clocks, since /proc/stat may be hidden from us. */
static double boot_time(void)
{
    struct timespec up = {0}, now = {0};
    clock_gettime(CLOCK_BOOTTIME, &up);
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)(now.tv_sec - up.tv_sec) + (double)(now.tv_nsec - up.tv_nsec) / 1e9;
}

static bool read_line(const char *path, char *out, int size)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool got = fgets(out, size, f);
    fclose(f);
    return got;
}

/* start_field returns field 22 of a line of /proc/self/stat and what follows it, or NULL. The name
 * of the program may contain anything, so the fields are counted from its closing parenthesis. */
static const char *start_field(const char *line)
{
    const char *p = strrchr(line, ')');
    for (int i = 0; p && i < 20; i++)
        p = strchr(p + 1, ' ');
    return p;
}

/* What /proc/self/stat says. */
struct stat_fields {
    double start; /* seconds since 1970 */
    double virtual_bytes, resident_bytes;
};

/* read_stat reads fields 22 to 24: start in clock ticks after boot, virtual bytes, resident
 * pages. */
static bool read_stat(struct stat_fields *ret)
{
    char line[1024];
    unsigned long long start, bytes;
    long long pages;
    if (!read_line("/proc/self/stat", line, sizeof line))
        return false;
    const char *p = start_field(line);
    if (!p)
        return false;
    /* NOLINTNEXTLINE(cert-err34-c): the kernel writes numbers that fit. */
    if (sscanf(p, " %llu %llu %lld", &start, &bytes, &pages) != 3)
        return false;

    ret->start = boot_time() + (double)start / (double)sysconf(_SC_CLK_TCK);
    ret->virtual_bytes = (double)bytes;
    ret->resident_bytes = (double)pages * (double)sysconf(_SC_PAGESIZE);
    return true;
}

size_t process_read(struct process_sample out[PROCESS_SAMPLES])
{
    size_t n = 0;
    struct stat_fields stat;
    struct rlimit files = {0};
    getrlimit(RLIMIT_NOFILE, &files);
    out[n++] = (struct process_sample){"process_cpu_seconds_total",
                                       "User and system CPU time spent.", true, cpu_seconds()};
    out[n++] = (struct process_sample){"process_open_fds", "Open file descriptors.", false,
                                       open_files()};
    out[n++] = (struct process_sample){"process_max_fds", "Limit on open file descriptors.", false,
                                       (double)files.rlim_cur};
    if (!read_stat(&stat))
        return n;

    out[n++] = (struct process_sample){"process_start_time_seconds", "When the process started.",
                                       false, stat.start};
    out[n++] = (struct process_sample){"process_virtual_memory_bytes", "Virtual memory.", false,
                                       stat.virtual_bytes};
    out[n++] = (struct process_sample){"process_resident_memory_bytes", "Resident memory.", false,
                                       stat.resident_bytes};
    return n;
}
