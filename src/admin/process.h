/* process.h: metrics of this process, under the names that the Prometheus clients use. */
#ifndef ADMIN_PROCESS_H
#define ADMIN_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#define PROCESS_SAMPLES 6

/* A metric and its value. */
struct process_sample {
    const char *name, *help;
    bool counter;
    double value;
};

/* process_read fills in the metrics that can be read, and returns their number. */
size_t process_read(struct process_sample out[PROCESS_SAMPLES]);

#endif
