/* owner.h: the name of a worker, which identifies its process. */
#ifndef BASE_OWNER_H
#define BASE_OWNER_H

#include <stdbool.h>
#include <stdint.h>

#define OWNER_TEXT 128

/* owner_make writes a new name for a worker of this process:
 *
 *     host:pid:random:machine-start
 *
 * machine stands for this boot of this machine and its pid namespace, start for the process's
 * start time. Where the kernel does not provide them, the name ends after random. */
void owner_make(char out[OWNER_TEXT], uint64_t random);

/* owner_gone returns whether that worker's process is certain to have ended: it ran on this machine
 * since the last boot and no longer exists. For a process that cannot be checked, such as one on
 * another machine, the result is false. */
bool owner_gone(const char *owner);

#endif
