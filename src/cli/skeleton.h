/* skeleton.h: what `migrate gen --out-dir` writes. */
#ifndef CLI_SKELETON_H
#define CLI_SKELETON_H

#include "cli/cli.h"

#define SKELETON_PATH 4096

/* A file to write. */
struct skeleton_file {
    const char *name; /* within the folder */
    struct buf text;
    bool there; /* it was there already, just like this */
};

/* skeleton_program appends boot.c, skeleton_makefile the file that makes it. The service's name has
 * passed store_name_check. */
void skeleton_program(struct buf *b, const char *service, const char *store);
void skeleton_makefile(struct buf *b);
/* skeleton_write writes the files into a folder, which it makes if need be. A file that is there
 * and says anything else is an error, and then none is written. */
int skeleton_write(const char *dir, struct skeleton_file *files, size_t n, struct error *err);

#endif
