/* io.h: makes file operations fail: open, write, fsync, ftruncate, pread, fstat, flock of the
 * library (-Wl,--wrap). */
#ifndef TESTS_TORTURE_IO_H
#define TESTS_TORTURE_IO_H

#include <stdbool.h>

enum io_fault {
    IO_EIO,
    IO_ENOSPC,
    IO_EINTR,
    IO_SHORT, /* a write accepts half of its bytes; everything else fails with EIO */
    IO_FAULTS
};

extern const char *const io_fault_names[IO_FAULTS];

/* io_arm makes the at-th call from now on fail (from 1) and, with `lasting`, the two that follow
 * it. */
void io_arm(long at, enum io_fault fault, bool lasting);
/* io_disarm stops that, and returns whether any call failed. */
bool io_disarm(void);

#endif
