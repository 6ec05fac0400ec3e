/* place.h: the folder of a file, reached without following a link that a stranger may have put
 * there. */
#ifndef BASE_PLACE_H
#define BASE_PLACE_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/err.h"

/* Where everybody may put files (/tmp), whoever was there first may have put one of his own, or a
 * link to one of ours. So, as the kernel's protected_symlinks and protected_regular have it: in
 * such a folder a link is followed, and a file used, only if it belongs to us, to root, or to the
 * owner of the folder. Whom a folder's group lets in is its owner's business.
 * (1) dir is a descriptor of the folder (O_PATH). (2) path is what was asked for, borrowed; name is
 *   its last part. */
struct place {
    int dir;
    const char *path, *name;
    struct stat folder;
};

/* place_find goes to the folder of `path`. On success the caller releases it. Errors:
 * ERR_UNAVAILABLE with the errno as native, ELOOP for a link that is not followed. */
int place_find(const char *path, struct place *ret, struct error *err);
void place_release(struct place *p);

/* place_open opens the file there, or makes it with these permissions, less the umask, and says so
 * in *ret_made. A link at its place is never followed. Flags are those of open(2), without O_CREAT.
 * Returns a descriptor, or -1. */
int place_open(const struct place *p, int flags, mode_t mode, bool *ret_made, struct error *err);
/* place_look says whether what is at `name` in the folder may be used; that nothing is there is
 * fine. A link may, if its owner may be trusted. */
int place_look(const struct place *p, const char *name, struct error *err);

/* place_caution is a line about who can take files away in the folder; false: nobody who should
 * not. */
bool place_caution(const struct place *p, char *out, size_t size);

#endif
