/* lines.c: reads a file line by line, or whole. */
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

/* Reads as many bytes as are available and fit into the buffer. l->end is set at the end of the
 * file. */
static int fill_buffer(struct lines *l, struct error *err)
{
    /* Move the unread bytes to the front, and grow the buffer if that leaves no room. */
    memmove(l->buf, l->buf + l->at, l->n - l->at);
    l->n -= l->at;
    l->at = 0;
    if (l->n == l->cap) {
        char *grown = realloc(l->buf, 2 * l->cap);
        if (!grown)
            return err_nomem(err);
        l->buf = grown;
        l->cap *= 2;
    }

    ssize_t got;
    do {
        got = read(l->fd, l->buf + l->n, l->cap - l->n);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not read the next lines");
    l->end = got == 0;
    l->n += (size_t)got;
    l->bytes += got;
    return 0;
}

/* Returns n bytes as a line and moves past them and the terminator. */
static struct str take_line(struct lines *l, size_t n, size_t terminator)
{
    struct str line = {l->buf + l->at, n};
    l->at += n + terminator;
    l->number++;
    return line;
}

/* Searches each byte only once: a long line that arrives in small pieces is still read in linear
 * time. */
int lines_next(struct lines *l, struct str *ret, bool *ret_more, struct error *err)
{
    size_t seen = 0; /* unread bytes known to hold no line feed */
    for (;;) {
        char *from = l->buf + l->at + seen;
        size_t left = l->n - l->at - seen;
        char *lf = memchr(from, '\n', left);
        if (lf)
            left = (size_t)(lf - from);
        seen += left;
        if (seen > l->max) {
            l->number++; /* the error is about this line */
            return err_set(err, ERR_INVALID,
                           "the line is longer than %zu bytes; max-payload sets how long it may be",
                           l->max);
        }

        if (lf) {
            *ret = take_line(l, seen, 1);
            *ret_more = true;
            return 0;
        }
        if (l->end) {
            *ret_more = seen > 0;
            if (*ret_more)
                *ret = take_line(l, seen, 0);
            return 0;
        }
        if (fill_buffer(l, err) != 0)
            return -1;
    }
}

/* Reads a descriptor to its end, or until b has `max` bytes. It returns 0 or an errno. */
static int read_whole(int fd, size_t max, struct buf *b)
{
    while (b->n < max) {
        size_t want = max - b->n < CHUNK ? max - b->n : CHUNK;
        char *to = buf_reserve(b, want);
        if (!to)
            return ENOMEM;

        ssize_t got = read(fd, to, want);
        if (got == 0)
            return 0;
        if (got > 0)
            b->n += (size_t)got;
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}

int lines_slurp(const char *path, size_t max, struct buf *b)
{
    if (strcmp(path, "-") == 0)
        return read_whole(STDIN_FILENO, max, b);

    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int e = read_whole(fd, max, b);
    close(fd);
    return e;
}
