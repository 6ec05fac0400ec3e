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

/* One way to a folder. (1) dir is where we are, and st what it is. (2) rest is what is still to
 * go. */
struct walk {
    int dir;
    struct stat st;
    char rest[PATH_MAX];
    int links;
};

static bool is_trusted(uid_t owner, const struct stat *folder)
{
    bool closed = !(folder->st_mode & S_IWOTH);
    return closed || owner == 0 || owner == geteuid() || owner == folder->st_uid;
}

/* enter makes fd, which it takes, the folder we are in. */
static int enter(struct walk *w, int fd)
{
    struct stat st;
    fd = fd_above_stdio(fd);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    if (w->dir >= 0)
        close(w->dir);
    w->dir = fd;
    w->st = st;
    return 0;
}

/* follow puts what a link says before the rest of the way. */
static int follow(struct walk *w, int link)
{
    char target[PATH_MAX], rest[PATH_MAX];
    ssize_t n = readlinkat(link, "", target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';
    if (++w->links > LINKS_MAX) {
        errno = ELOOP;
        return -1;
    }
    if ((size_t)snprintf(rest, sizeof rest, "%s/%s", target, w->rest) >= sizeof rest) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(w->rest, rest, strlen(rest) + 1);
    if (target[0] != '/')
        return 0;
    return enter(w, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/* step goes one folder on; *ret_stranger is whose link stood in the way. */
static int step(struct walk *w, const char *name, uid_t *ret_stranger)
{
    struct stat st = {0};
    int fd = openat(w->dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC), rc = -1, why = ENOTDIR;
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) != 0) {
        why = errno;
    } else if (S_ISDIR(st.st_mode)) {
        return enter(w, fd);
    } else if (S_ISLNK(st.st_mode) && !is_trusted(st.st_uid, &w->st)) {
        *ret_stranger = st.st_uid;
        why = ELOOP;
    } else if (S_ISLNK(st.st_mode)) {
        rc = follow(w, fd);
        why = errno;
    }
    close(fd);
    errno = why;
    return rc;
}

static int walk(struct walk *w, uid_t *ret_stranger)
{
    const char *start = w->rest[0] == '/' ? "/" : ".";
    if (enter(w, open(start, O_PATH | O_DIRECTORY | O_CLOEXEC)) != 0)
        return -1;
    for (;;) {
        char name[NAME_MAX + 1];
        size_t skip = strspn(w->rest, "/"), n = strcspn(w->rest + skip, "/");
        if (n == 0)
            return 0;
        if (n > NAME_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(name, w->rest + skip, n);
        name[n] = '\0';
        memmove(w->rest, w->rest + skip + n, strlen(w->rest + skip + n) + 1);
        if (step(w, name, ret_stranger) != 0)
            return -1;
    }
}

int place_find(const char *path, struct place *ret, struct error *err)
{
    const char *slash = strrchr(path, '/');
    struct walk w = {.dir = -1};
    uid_t stranger = (uid_t)-1;
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof w.rest)
        return err_errno(err, ERR_UNAVAILABLE, ENAMETOOLONG, "could not open %s", path);
    memcpy(w.rest, path, n);
    w.rest[n] = '\0';
    if (walk(&w, &stranger) != 0) {
        int e = errno;
        if (w.dir >= 0)
            close(w.dir);
        if (stranger == (uid_t)-1)
            return err_errno(err, ERR_UNAVAILABLE, e, "could not open %s", path);
        return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, ELOOP,
                        "%s: a folder on the way is a link that belongs to uid %u, in a folder "
                        "that everybody can write "
                        "to; it is not followed",
                        path, (unsigned)stranger);
    }
    *ret = (struct place){w.dir, path, slash ? slash + 1 : path, w.st};
    return 0;
}

void place_release(struct place *p)
{
    if (p->dir >= 0)
        close(p->dir);
    p->dir = -1;
}

static int not_trusted(const char *name, const struct stat *st, struct error *err)
{
    if (S_ISREG(st->st_mode) && st->st_nlink > 1)
        return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, EPERM,
                        "%s has other names (hard links), and is in a folder that everybody can "
                        "write to: it is not used",
                        name);
    return err_fate(
        err, ERR_UNAVAILABLE, FATE_DOWN, EPERM,
        "%s belongs to uid %u, and is in a folder that everybody can write to: it is not used",
        name, (unsigned)st->st_uid);
}

/* is_usable: a file with two names may be one of ours under a stranger's name. */
static bool is_usable(const struct place *p, const struct stat *st)
{
    bool closed = !(p->folder.st_mode & S_IWOTH);
    bool one_name = closed || !S_ISREG(st->st_mode) || st->st_nlink <= 1;
    return one_name && is_trusted(st->st_uid, &p->folder);
}

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
            return fd; /* another relay was faster: once more */
    }
    return -1;
}

int place_open(const struct place *p, int flags, mode_t mode, bool *ret_made, struct error *err)
{
    struct stat st;
    int fd = fd_above_stdio(open_or_make(p, flags, mode, ret_made));
    if (fd < 0 && errno == ELOOP)
        return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, ELOOP,
                        "%s is a symbolic link, which is not followed: name the file itself",
                        p->path);
    if (fd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not open %s", p->path);
    if (fstat(fd, &st) != 0)
        err_errno(err, ERR_UNAVAILABLE, errno, "could not look at %s", p->path);
    else if (is_usable(p, &st))
        return fd;
    else
        not_trusted(p->path, &st, err);
    close(fd);
    return -1;
}

int place_look(const struct place *p, const char *name, struct error *err)
{
    struct stat st;
    /* whoever opens it will say what is wrong */
    if (fstatat(p->dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    return is_usable(p, &st) ? 0 : not_trusted(name, &st, err);
}

bool place_caution(const struct place *p, char *out, size_t size)
{
    bool everybody = p->folder.st_mode & S_IWOTH && !(p->folder.st_mode & S_ISVTX);
    bool another = p->folder.st_uid != 0 && p->folder.st_uid != geteuid();
    if (everybody)
        snprintf(
            out, size,
            "everybody on this machine can take files away in its folder; chmod o-w that, or +t");
    else if (another)
        snprintf(out, size, "its folder belongs to uid %u, who can take files away there",
                 (unsigned)p->folder.st_uid);
    return everybody || another;
}
