#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define CHUNK ((size_t)64 * 1024)

int lines_init(struct lines *l, int fd, size_t max, struct error *err)
{
    char *buf = malloc(CHUNK);
    if (!buf)
        return err_nomem(err);
    *l = (struct lines){.fd = fd, .buf = buf, .cap = CHUNK, .max = max};
    return 0;
}

void lines_release(struct lines *l)
{
    free(l->buf);
    *l = (struct lines){.fd = -1};
}

/* make_room moves what is left to the front, and grows only when one line fills the buffer. */
static int make_room(struct lines *l, struct error *err)
{
    memmove(l->buf, l->buf + l->at, l->n - l->at);
    l->n -= l->at;
    l->at = 0;
    if (l->n < l->cap)
        return 0;
    char *grown = realloc(l->buf, 2 * l->cap);
    if (!grown)
        return err_nomem(err);
    l->buf = grown;
    l->cap *= 2;
    return 0;
}

static int fill(struct lines *l, struct error *err)
{
    if (make_room(l, err) != 0)
        return -1;
    ssize_t got;
    do {
        got = read(l->fd, l->buf + l->n, l->cap - l->n);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not read on");
    l->end = got == 0;
    l->n += (size_t)got;
    l->bytes += got;
    return 0;
}

static struct str take(struct lines *l, size_t n, size_t terminator)
{
    struct str line = {l->buf + l->at, n};
    l->at += n + terminator;
    l->number++;
    return line;
}

int lines_next(struct lines *l, struct str *ret, bool *ret_more, struct error *err)
{
    size_t seen = 0; /* of the bytes in hand, those known to hold no line feed */
    for (;;) {
        char *from = l->buf + l->at + seen;
        char *lf = memchr(from, '\n', l->n - l->at - seen);
        seen = lf ? (size_t)(lf - l->buf) - l->at : l->n - l->at;
        if (seen > l->max) {
            l->number++;
            return err_set(err, ERR_INVALID,
                           "the line is longer than %zu bytes; max-payload sets how long it may be",
                           l->max);
        }
        if (lf || l->end) {
            *ret_more = lf || seen > 0;
            if (*ret_more)
                *ret = take(l, seen, lf ? 1 : 0);
            return 0;
        }
        if (fill(l, err) != 0)
            return -1;
    }
}

int lines_slurp(const char *path, size_t max, struct buf *b)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int e = 0;
    while (b->n < max) {
        size_t want = max - b->n < CHUNK ? max - b->n : CHUNK;
        char *to = buf_reserve(b, want);
        if (!to) {
            e = ENOMEM;
            break;
        }
        ssize_t got = read(fd, to, want);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            e = errno;
        if (got <= 0)
            break;
        b->n += (size_t)got;
    }
    if (!is_stdin)
        close(fd);
    return e;
}
