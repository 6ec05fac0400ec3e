#include "base/place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

#define LINKS_MAX 40
#define TRIES_MAX 8
#define NO_UID ((uid_t)-1)

/* A path walk. (1) dir is the current folder, and st its status. (2) rest is the path still to go.
 * (3) untrusted_uid is the owner of the link that stopped the walk; NO_UID if none did. */
struct walk {
    int dir;
    struct stat st;
    char rest[PATH_MAX];
    int links;
    uid_t untrusted_uid;
};

/* Sets errno and returns -1, as a system call does. */
static int fail(int why)
{
    errno = why;
    return -1;
}

/* Closes a descriptor and keeps errno. */
static void close_keeping(int fd)
{
    int saved = errno;
    close(fd);
    errno = saved;
}

static bool is_open_to_all(const struct stat *folder)
{
    return folder->st_mode & S_IWOTH;
}

/* Whether a file or link with that owner may be used in the folder. */
static bool is_trusted(uid_t owner, const struct stat *folder)
{
    if (!is_open_to_all(folder))
        return true;
    return owner == 0 || owner == geteuid() || owner == folder->st_uid;
}

/* Makes fd the current folder, taking ownership. */
static int enter(struct walk *w, int fd)
{
    fd = fd_above_stdio(fd);
    if (fd < 0)
        return -1;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        close_keeping(fd);
        return -1;
    }

    if (w->dir >= 0)
        close(w->dir);
    w->dir = fd;
    w->st = st;
    return 0;
}

/* Prepends the target of a link to the rest of the path. */
static int follow(struct walk *w, int link)
{
    char target[PATH_MAX], rest[PATH_MAX];
    ssize_t n = readlinkat(link, "", target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';

    w->links++;
    if (w->links > LINKS_MAX)
        return fail(ELOOP);
    size_t length = (size_t)snprintf(rest, sizeof rest, "%s/%s", target, w->rest);
    if (length >= sizeof rest)
        return fail(ENAMETOOLONG);
    memcpy(w->rest, rest, length + 1);

    if (target[0] != '/')
        return 0;
    return enter(w, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/* Handles fd, which is not a folder: follows it if it is a trusted link, otherwise fails. */
static int pass(struct walk *w, int fd, const struct stat *st)
{
    if (!S_ISLNK(st->st_mode))
        return fail(ENOTDIR);
    if (!is_trusted(st->st_uid, &w->st)) {
        w->untrusted_uid = st->st_uid;
        return fail(ELOOP);
    }
    return follow(w, fd);
}

/* Advances by one component of the path. */
static int step(struct walk *w, const char *name)
{
    int fd = openat(w->dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    struct stat st;
    int r = fstat(fd, &st);
    if (r == 0 && S_ISDIR(st.st_mode))
        return enter(w, fd);

    if (r == 0)
        r = pass(w, fd, &st);
    close_keeping(fd);
    return r;
}

/* Removes the first component from the rest of the path. Returns 1; 0 if none is left. */
static int cut_part(struct walk *w, char name[NAME_MAX + 1])
{
    const char *part = w->rest + strspn(w->rest, "/");
    size_t n = strcspn(part, "/");
    if (n == 0)
        return 0;
    if (n > NAME_MAX)
        return fail(ENAMETOOLONG);
    memcpy(name, part, n);
    name[n] = '\0';
    memmove(w->rest, part + n, strlen(part + n) + 1);
    return 1;
}

static int walk(struct walk *w)
{
    const char *start = w->rest[0] == '/' ? "/" : ".";
    if (enter(w, open(start, O_PATH | O_DIRECTORY | O_CLOEXEC)) != 0)
        return -1;

    char name[NAME_MAX + 1];
    int more;
    while ((more = cut_part(w, name)) > 0)
        if (step(w, name) != 0)
            return -1;
    return more;
}

/* Reports why a walk failed, by its errno, and ends it. */
static int not_reached(struct walk *w, const char *path, struct error *err)
{
    int why = errno;
    if (w->dir >= 0)
        close(w->dir);
    if (w->untrusted_uid == NO_UID)
        return err_errno(err, ERR_UNAVAILABLE, why, "could not open %s", path);
    return err_class(
        err, ERR_UNAVAILABLE, CLASS_DOWN, ELOOP,
        "%s: the path contains a symbolic link of uid %u in a world-writable folder, which is not "
        "followed",
        path, (unsigned)w->untrusted_uid);
}

int place_find(const char *path, struct place *ret, struct error *err)
{
    struct walk w = {.dir = -1, .untrusted_uid = NO_UID};
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t n = (size_t)(name - path);
    if (n >= sizeof w.rest)
        return err_errno(err, ERR_UNAVAILABLE, ENAMETOOLONG, "could not open %s", path);
    memcpy(w.rest, path, n);
    w.rest[n] = '\0';

    if (walk(&w) != 0)
        return not_reached(&w, path, err);
    *ret = (struct place){w.dir, path, name, w.st};
    return 0;
}

void place_release(struct place *p)
{
    if (p->dir >= 0)
        close(p->dir);
    p->dir = -1;
}

/* Refuses a file or link that another user may have planted. One with two names may be a file of
 * ours that another user hard-linked. */
static int check_trusted(const struct place *p, const char *name, const struct stat *st,
                         struct error *err)
{
    bool has_other_names = S_ISREG(st->st_mode) && st->st_nlink > 1;
    if (has_other_names && is_open_to_all(&p->folder))
        return err_class(
            err, ERR_UNAVAILABLE, CLASS_DOWN, EPERM,
            "%s has other names (hard links) and is in a world-writable folder; refusing to use it",
            name);
    if (!is_trusted(st->st_uid, &p->folder))
        return err_class(
            err, ERR_UNAVAILABLE, CLASS_DOWN, EPERM,
            "%s belongs to uid %u and is in a world-writable folder; refusing to use it", name,
            (unsigned)st->st_uid);
    return 0;
}

/* Alternates between opening and creating, since another relay may create or remove the file in
 * between. */
static int open_or_make(const struct place *p, int flags, mode_t mode, bool *ret_made)
{
    for (int i = 0; i < TRIES_MAX; i++) {
        *ret_made = false;
        int fd = openat(p->dir, p->name, flags | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 || errno != ENOENT)
            return fd;
        *ret_made = true;
        fd = openat(p->dir, p->name, flags | O_NOFOLLOW | O_CLOEXEC | O_CREAT | O_EXCL, mode);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

int place_open(const struct place *p, int flags, mode_t mode, bool *ret_made, struct error *err)
{
    int fd = fd_above_stdio(open_or_make(p, flags, mode, ret_made));
    if (fd < 0 && errno == ELOOP)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, ELOOP,
                         "%s is a symbolic link, which is not followed: name the file itself",
                         p->path);
    if (fd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not open %s", p->path);

    struct stat st;
    if (fstat(fd, &st) != 0)
        err_errno(err, ERR_UNAVAILABLE, errno, "could not examine %s", p->path);
    else if (check_trusted(p, p->path, &st, err) == 0)
        return fd;
    close(fd);
    return -1;
}

int place_look(const struct place *p, const char *name, struct error *err)
{
    struct stat st;
    if (fstatat(p->dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return 0; /* open will report the error */
    return check_trusted(p, name, &st, err);
}

bool place_caution(const struct place *p, char *out, size_t size)
{
    bool sticky = p->folder.st_mode & S_ISVTX;
    bool any_user = is_open_to_all(&p->folder) && !sticky;
    bool another = p->folder.st_uid != 0 && p->folder.st_uid != geteuid();
    if (any_user)
        snprintf(out, size,
                 "any user of this machine can delete files in the folder; "
                 "run chmod o-w or +t on it");
    else if (another)
        snprintf(out, size, "the folder belongs to uid %u, who can delete files there",
                 (unsigned)p->folder.st_uid);
    return any_user || another;
}
