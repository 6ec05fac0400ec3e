/* skeleton.h: the files that `migrate gen --out-dir` writes. */
#ifndef GEN_SKELETON_H
#define GEN_SKELETON_H

#include "cli/cli.h"

#define SKELETON_PATH 4096

/* A file to write. */
struct skeleton_file {
    const char *name; /* within the directory */
    struct buf text;
    bool is_new; /* false: it already exists with this content */
};

/* skeleton_program appends boot.c. The name of the service has passed store_name_check. */
void skeleton_program(struct buf *b, const char *service, const char *store);
/* skeleton_makefile appends the Makefile for boot.c. */
void skeleton_makefile(struct buf *b);
/* skeleton_write writes the files into a directory, which it creates if necessary. If one of them
 * exists with different content, it fails without writing any file. */
int skeleton_write(const char *dir, struct skeleton_file *files, size_t n, struct error *err);

#endif
