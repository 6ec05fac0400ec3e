/* process.h: what Prometheus' own clients say of their process, by the same names. */
#ifndef ADMIN_PROCESS_H
#define ADMIN_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#define PROCESS_SAMPLES 6

struct process_sample {
    const char *name, *help;
    bool counter;
    double value;
};

/* process_read fills in what can be learnt of this process; returns how many. */
size_t process_read(struct process_sample out[PROCESS_SAMPLES]);

#endif
