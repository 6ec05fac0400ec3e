/* small_file.h: reads a whole file (settings, secrets, headers) into memory that the caller can
 * wipe. */
#ifndef BASE_SMALL_FILE_H
#define BASE_SMALL_FILE_H

#include <stddef.h>
#include <sys/types.h>

/* small_file_read reads up to `size` bytes of a file and returns how many; `size` means that there
 * may be more. -1 with errno. */
ssize_t small_file_read(const char *path, char *to, size_t size);
/* small_file_read_fd does the same for a descriptor, which stays open. */
ssize_t small_file_read_fd(int fd, char *to, size_t size);

#endif
