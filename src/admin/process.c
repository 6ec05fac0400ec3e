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

static int open_files(void)
{
    int n = -1; /* the one it is counted through */
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* boot_time comes from two clocks: /proc/stat may be hidden from us. */
static double boot_time(void)
{
    struct timespec up = {0}, now = {0};
    clock_gettime(CLOCK_BOOTTIME, &up);
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)(now.tv_sec - up.tv_sec) + (double)(now.tv_nsec - up.tv_nsec) / 1e9;
}

/* read_stat: fields 22 to 24 of /proc/self/stat, counted behind the name, which may hold
 * anything. */
static bool read_stat(double *ret_start, double *ret_virtual, double *ret_resident)
{
    char line[1024] = "";
    unsigned long long start, bytes;
    long long pages;
    FILE *f = fopen("/proc/self/stat", "re");
    bool got = f && fgets(line, sizeof line, f);
    if (f)
        fclose(f);
    const char *p = strrchr(line, ')');
    if (!got || !p)
        return false;
    for (int i = 0; p && i < 20; i++)
        p = strchr(p + 1, ' ');
    if (!p)
        return false;
    /* NOLINTNEXTLINE(cert-err34-c): the kernel writes numbers that fit. */
    if (sscanf(p, " %llu %llu %lld", &start, &bytes, &pages) != 3)
        return false;
    *ret_start = boot_time() + (double)start / (double)sysconf(_SC_CLK_TCK);
    *ret_virtual = (double)bytes;
    *ret_resident = (double)pages * (double)sysconf(_SC_PAGESIZE);
    return true;
}

size_t process_read(struct process_sample out[PROCESS_SAMPLES])
{
    size_t n = 0;
    double start, size, resident;
    struct rlimit files = {0};
    getrlimit(RLIMIT_NOFILE, &files);
    out[n++] = (struct process_sample){"process_cpu_seconds_total",
                                       "User and system CPU time spent.", true, cpu_seconds()};
    out[n++] = (struct process_sample){"process_open_fds", "Open file descriptors.", false,
                                       open_files()};
    out[n++] = (struct process_sample){"process_max_fds", "File descriptors that may be open.",
                                       false, (double)files.rlim_cur};
    if (!read_stat(&start, &size, &resident))
        return n;
    out[n++] = (struct process_sample){"process_start_time_seconds", "When the process started.",
                                       false, start};
    out[n++] = (struct process_sample){"process_virtual_memory_bytes", "Virtual memory.", false,
                                       size};
    out[n++] = (struct process_sample){"process_resident_memory_bytes", "Resident memory.", false,
                                       resident};
    return n;
}
