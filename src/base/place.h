/* place.h: the folder of a file, reached without following untrusted links. */
#ifndef BASE_PLACE_H
#define BASE_PLACE_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/err.h"

/* In a world-writable folder (/tmp), another user may have planted a file where we expect ours, or
 * a link to one of ours. There, as with the kernel's protected_symlinks and protected_regular, a
 * link is followed and a file used only if it belongs to us, to root, or to the owner of the
 * folder. Group access to the folder is up to its owner. (1) dir is a descriptor of the folder
 * (O_PATH). (2) path is the whole path, borrowed; name is its last component. */
struct place {
    int dir;
    const char *path, *name;
    struct stat folder;
};

/* place_find opens the folder of `path`. On success the caller releases *ret. Errors:
 * ERR_UNAVAILABLE with errno as the native code, ELOOP for a link that is not followed. */
int place_find(const char *path, struct place *ret, struct error *err);
void place_release(struct place *p);

/* place_open opens the file, or creates it with these permissions less the umask, and sets
 * *ret_made accordingly. It never follows a link. flags are those of open(2), without O_CREAT.
 * Returns a descriptor, which the caller closes, or -1. */
int place_open(const struct place *p, int flags, mode_t mode, bool *ret_made, struct error *err);

/* place_look refuses a file or link of that name in the folder if its owner is not trusted. A name
 * that does not exist is fine. */
int place_look(const struct place *p, const char *name, struct error *err);

/* place_caution writes a warning if other users can delete files in the folder; false if none
 * can. */
bool place_caution(const struct place *p, char *out, size_t size);

#endif
