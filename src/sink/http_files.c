/* http_files.c: files of a webhook that may change at runtime: its secrets, and extra headers. */
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

/* Extra headers */

static bool begins_with(struct str s, struct str prefix)
{
    return s.n > prefix.n && strncasecmp(s.p, prefix.p, prefix.n) == 0;
}

/* Whether a header is reserved: we write it ourselves, or it decides where a request ends. */
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

/* Adds one line, "Name: value". Its errors repeat at most the name, never the value. */
static int add_header(struct buf *b, struct str line, struct error *err)
{
    const char *colon = memchr(line.p, ':', line.n);
    struct str name = {line.p, colon ? (size_t)(colon - line.p) : 0};
    bool is_token = name.n > 0;
    for (size_t i = 0; i < name.n; i++) {
        bool separator = strchr("()<>@,;:\\\"/[]?={}", name.p[i]) != NULL;
        if (separator || !char_is_visible(name.p[i]))
            is_token = false;
    }
    if (!is_token)
        return err_set(err, ERR_CONFIG, "this is not Name: value");
    if (is_ours(name))
        return err_set(err, ERR_CONFIG, "%.*s cannot be set here", (int)name.n, name.p);

    struct str value = {colon + 1, line.n - name.n - 1};
    while (value.n && char_is_blank(value.p[0])) {
        value.p++;
        value.n--;
    }
    while (value.n && (char_is_blank(value.p[value.n - 1]) || value.p[value.n - 1] == '\r'))
        value.n--;
    if (value.n == 0)
        return err_set(err, ERR_CONFIG, "%.*s has no value", (int)name.n, name.p);
    for (size_t i = 0; i < value.n; i++) {
        if (char_is_control(value.p[i]))
            return err_set(err, ERR_CONFIG, "the value has a control character in it");
    }
    buf_addstr(b, name);
    buf_adds(b, ": ");
    buf_addstr(b, value);
    buf_addc(b, '\0');
    if (b->failed)
        return err_nomem(err);
    return 0;
}

/* Skips empty lines and comments. */
static int add_headers(struct buf *b, struct str text, struct error *err)
{
    for (int number = 1; text.n > 0; number++) {
        const char *eol = memchr(text.p, '\n', text.n);
        struct str line = {text.p, eol ? (size_t)(eol - text.p) : text.n};
        size_t past = eol ? line.n + 1 : line.n;
        text = (struct str){text.p + past, text.n - past};
        if (number > EXTRA_LINES)
            return err_set(err, ERR_CONFIG, "more than %d lines", EXTRA_LINES);
        bool counts = line.n > 0 && line.p[0] != '#' && line.p[0] != '\r';
        if (counts && add_header(b, line, err) != 0)
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

/* Wipes and frees a buffer of secrets. */
static void wipe(struct buf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    buf_release(b);
}

/* Files that may change */

/* Whether a file has changed since it was last checked, and records its state. A missing file
 * always counts as changed. */
static bool has_changed(struct http_watch *w, const char *path)
{
    struct stat st;
    struct http_watch before = *w;
    *w = (struct http_watch){.inode = 0};
    if (stat(path, &st) != 0)
        return true;
    *w = (struct http_watch){st.st_mtim, st.st_ino, st.st_size};
    return w->inode != before.inode || w->size != before.size ||
           w->changed.tv_sec != before.changed.tv_sec ||
           w->changed.tv_nsec != before.changed.tv_nsec;
}

/* Makes has_changed true the next time: the file's content was not usable. */
static void recheck_file(struct http_watch *w)
{
    w->inode = 0;
}

static int refresh_secrets(struct http *h, struct error *err)
{
    const struct http_options *o = h->o;
    struct signature_source from = {o->secret_file, o->secret_env, SIGNATURE_SIGN};
    struct signature_keys *keys;
    bool wanted = o->secret_file || o->secret_env;
    bool changed = !h->keys; /* the environment does not change */
    if (o->secret_file)
        changed = has_changed(&h->secrets, o->secret_file);
    if (!wanted || !changed)
        return 0;

    if (signature_keys_load(&from, &keys, err) != 0) {
        recheck_file(&h->secrets);
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
        recheck_file(&h->headers);
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
