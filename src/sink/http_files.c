/* http_files.c: the files of a webhook that may change while we run: its secrets, and the headers
 * to send along. */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/char.h"
#include "base/small_file.h"
#include "sink/http_impl.h"

#define EXTRA_MAX 16384
#define EXTRA_LINES 32 /* of webhook-header-file */
#define LOOK_NS (INT64_C(1000) * MS_NS)

/* ---- headers to send along ---- */

/* A line of webhook-header-file, split at its colon. */
struct header {
    struct str name, value;
};

static bool is_token(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        bool separator = strchr("()<>@,;:\\\"/[]?={}", s.p[i]) != NULL;
        if (separator || !char_is_visible(s.p[i]))
            return false;
    }
    return s.n > 0;
}

static bool begins_with(struct str s, struct str prefix)
{
    return s.n > prefix.n && strncasecmp(s.p, prefix.p, prefix.n) == 0;
}

/* is_ours says whether a header is one that we write, or one that decides where a request ends. */
static bool is_ours(struct str name)
{
    static const char *const names[] = {
        "content-type", "content-length", "transfer-encoding", "host", "connection",
        "expect",       "traceparent",    "tracestate",        "te",   "upgrade"};
    if (begins_with(name, STR("ce-")) || begins_with(name, STR("webhook-")))
        return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == name.n && strncasecmp(name.p, names[i], name.n) == 0)
            return true;
    }
    return false;
}

/* trim takes off blanks, and at the end also the carriage return of a line end. */
static struct str trim(struct str s)
{
    while (s.n && char_is_blank(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n && (char_is_blank(s.p[s.n - 1]) || s.p[s.n - 1] == '\r'))
        s.n--;
    return s;
}

static bool has_control(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (char_is_control(s.p[i]))
            return true;
    }
    return false;
}

/* parse_header reads one line. Its errors repeat the name at most, never the value. */
static int parse_header(struct str line, struct header *ret, struct error *err)
{
    const char *colon = memchr(line.p, ':', line.n);
    if (!colon)
        return err_set(err, ERR_CONFIG, "this is not Name: value");
    struct str name = {line.p, (size_t)(colon - line.p)};
    struct str value = trim((struct str){colon + 1, line.n - name.n - 1});

    if (!is_token(name))
        return err_set(err, ERR_CONFIG, "this is not Name: value");
    if (is_ours(name))
        return err_set(err, ERR_CONFIG, "%.*s cannot be set here", (int)name.n, name.p);
    if (value.n == 0)
        return err_set(err, ERR_CONFIG, "%.*s has no value", (int)name.n, name.p);
    if (has_control(value))
        return err_set(err, ERR_CONFIG, "the value has a control character in it");
    *ret = (struct header){name, value};
    return 0;
}

static int add_header(struct buf *b, struct str line, struct error *err)
{
    struct header h = {0};
    if (parse_header(line, &h, err) != 0)
        return -1;
    buf_addstr(b, h.name);
    buf_adds(b, ": ");
    buf_addstr(b, h.value);
    buf_addc(b, '\0');
    if (b->failed)
        return err_nomem(err);
    return 0;
}

/* next_line takes the next line off the text; false at its end. */
static bool next_line(struct str *text, struct str *ret)
{
    if (text->n == 0)
        return false;
    const char *eol = memchr(text->p, '\n', text->n);
    *ret = *text;
    if (!eol) {
        *text = (struct str){text->p + text->n, 0};
        return true;
    }
    ret->n = (size_t)(eol - text->p);
    *text = (struct str){eol + 1, text->n - ret->n - 1};
    return true;
}

/* counts says whether a line is neither empty nor a comment. */
static bool counts(struct str line)
{
    return line.n > 0 && line.p[0] != '#' && line.p[0] != '\r';
}

static int add_headers(struct buf *b, struct str text, struct error *err)
{
    struct str line;
    for (int number = 1; next_line(&text, &line); number++) {
        if (number > EXTRA_LINES)
            return err_set(err, ERR_CONFIG, "more than %d lines", EXTRA_LINES);
        if (counts(line) && add_header(b, line, err) != 0)
            return err_prefix(err, "line %d", number);
    }
    return 0;
}

static int read_headers(struct buf *b, const char *path, struct error *err)
{
    char text[EXTRA_MAX];
    ssize_t n = small_file_read(path, text, sizeof text);
    if (n < 0)
        return err_errno(err, ERR_CONFIG, errno, "%s: could not read the headers", path);
    int r;
    if (n == sizeof text)
        r = err_set(err, ERR_CONFIG, "over 16 KiB");
    else
        r = add_headers(b, (struct str){text, (size_t)n}, err);
    explicit_bzero(text, sizeof text);
    if (r != 0)
        return err_prefix(err, "%s", path);
    return 0;
}

/* wipe releases a buffer that held secrets. */
static void wipe(struct buf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    buf_release(b);
}

/* ---- files that may change ---- */

static bool is_same(const struct http_watch *a, const struct http_watch *b)
{
    if (a->inode != b->inode || a->size != b->size)
        return false;
    return a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

/* has_changed says whether a file differs from what was last seen, and remembers it. A file that is
 * not there always differs. */
static bool has_changed(struct http_watch *w, const char *path)
{
    struct stat st;
    struct http_watch before = *w;
    *w = (struct http_watch){.inode = 0};
    if (stat(path, &st) != 0)
        return true;
    *w = (struct http_watch){st.st_mtim, st.st_ino, st.st_size};
    return !is_same(w, &before);
}

/* look_again makes has_changed true the next time: what the file held was of no use. */
static void look_again(struct http_watch *w)
{
    w->inode = 0;
}

static bool secrets_changed(struct http *h)
{
    if (h->o->secret_file)
        return has_changed(&h->secrets, h->o->secret_file);
    return !h->keys; /* an environment does not change */
}

static int refresh_secrets(struct http *h, struct error *err)
{
    const struct http_options *o = h->o;
    struct signature_source from = {o->secret_file, o->secret_env, SIGNATURE_SIGN};
    struct signature_keys *keys;
    bool wanted = o->secret_file || o->secret_env;
    if (!wanted || !secrets_changed(h))
        return 0;

    if (signature_keys_load(&from, &keys, err) != 0) {
        look_again(&h->secrets);
        return -1;
    }
    signature_keys_free(h->keys);
    h->keys = keys;
    return 0;
}

static int refresh_headers(struct http *h, struct error *err)
{
    const char *path = h->o->header_file;
    struct buf b;
    if (!path || !has_changed(&h->headers, path))
        return 0;

    buf_init(&b, EXTRA_MAX);
    if (read_headers(&b, path, err) != 0) {
        look_again(&h->headers);
        wipe(&b);
        return -1;
    }
    wipe(&h->extra);
    h->extra = b;
    return 0;
}

void http_files_init(struct http *h)
{
    buf_init(&h->extra, EXTRA_MAX);
}

int http_files_refresh(struct http *h, struct error *err)
{
    int64_t now = clock_mono(h->base.cfg.clock);
    if (now < h->look_at)
        return 0;
    if (refresh_secrets(h, err) != 0)
        return -1;
    if (refresh_headers(h, err) != 0)
        return -1;
    h->look_at = now + LOOK_NS;
    return 0;
}

void http_files_release(struct http *h)
{
    signature_keys_free(h->keys);
    wipe(&h->extra);
}
