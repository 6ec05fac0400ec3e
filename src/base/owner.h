/* owner.h: the name of a worker, which says in what process it works. */
#ifndef BASE_OWNER_H
#define BASE_OWNER_H

#include <stdbool.h>
#include <stdint.h>

#define OWNER_TEXT 128

/* owner_make makes up the name of a worker of this process:
 *
 *     host:pid:random:machine-start
 *
 * machine stands for this boot of this machine and its namespace of pids, start for the time the
 * process was started. Where the kernel does not tell, the name ends after random. */
void owner_make(char out[OWNER_TEXT], uint64_t random);

/* owner_gone says whether the process of that worker has ended for certain: it ran on this machine,
 * since it was booted, and is there no more. Of a process that cannot be asked for, such as one on
 * another machine, the answer is no. */
bool owner_gone(const char *owner);

#endif
