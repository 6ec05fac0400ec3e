#include "sink/broker.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/url.h"

#define PATH_MAX_BYTES 2048
#define CAUTIONS (sizeof((struct broker *)0)->caution / BROKER_CAUTION)

/* Opening and closing */

int broker_open(const struct sink_config *cfg, const struct broker_kind *kind, struct sink **ret,
                struct error *err)
{
    const struct sink_ops *ops;
    if (sink_find(cfg->url, &ops, err) != 0)
        return -1;
    struct broker *b = calloc(1, kind->size);
    if (!b)
        return err_nomem(err);
    b->base = (struct sink){.ops = ops, .cfg = *cfg};
    b->kind = kind;
    buf_init(&b->destination, kind->name_max);
    buf_init(&b->text, kind->message_max);

    int rc = kind->set_up(&b->base, err);
    if (rc == 0 && kind->in_flight > 0)
        rc = window_init(&b->window, &b->base, kind->in_flight, kind->item_size, err);
    if (rc == 0 && window_marks_init(&b->marks) != 0)
        rc = err_nomem(err);
    if (rc != 0) {
        ops->close(&b->base);
        return -1;
    }
    *ret = &b->base;
    return 0;
}

void broker_close(struct sink *sk)
{
    struct broker *b = (struct broker *)sk;
    template_free(b->name);
    buf_release(&b->destination);
    buf_release(&b->text);
    window_release(&b->window);
    window_marks_release(&b->marks);
    free(b);
}

int broker_route(struct broker *b, const char *name, struct message_style style, struct error *err)
{
    b->style = style;
    if (template_new(name, &b->name, err) != 0)
        return err_prefix(err, "%s sink: %s", b->kind->name, b->kind->destination);
    b->fixed = template_fixed(b->name);
    return 0;
}

struct str broker_name(struct broker *b, const struct event *ev, struct error *err)
{
    buf_clear(&b->destination);
    if (template_write_escaped(b->name, ev, b->kind->escape, &b->destination, err) != 0)
        return (struct str){NULL, 0};
    return (struct str){b->destination.p, b->destination.n};
}

int broker_message(struct broker *b, const struct delivery *d, struct str destination,
                   struct message *ret, struct error *err)
{
    return message_make(&b->style, d->ev, destination, str_of(b->base.cfg.consumer), d->attempt,
                        &b->text, ret, err);
}

void broker_settings_release(const struct option_def *table, void *settings)
{
    for (const struct option_def *o = table; o->name; o++) {
        bool is_owned = o->set == option_copy || o->set == option_file;
        if (!is_owned)
            continue;
        char **text = (char **)(void *)((char *)settings + o->at);
        free(*text);
        *text = NULL;
    }
}

int broker_check_files(const char *const *files, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (files[i] && access(files[i], R_OK) != 0)
            return err_errno(err, ERR_CONFIG, errno, "could not read %s", files[i]);
    }
    return 0;
}

/* Reports to the engine, to operators and to the store */

bool broker_unsent(struct broker *b, struct delivery *d, const struct error *err)
{
    struct sink_result res = sink_unsent(err);
    sink_done(&b->base, d, &res);
    return res.status == SINK_REJECT;
}

void broker_set_caution(struct broker *b, const char *fmt, ...)
{
    va_list ap;
    const char *last = b->caution[b->cautions % CAUTIONS];
    char *next = b->caution[(b->cautions + 1) % CAUTIONS];
    va_start(ap, fmt);
    vsnprintf(next, BROKER_CAUTION, fmt, ap);
    va_end(ap);
    if (strcmp(next, last) != 0)
        b->cautions++;
}

const char *broker_caution(struct sink *sk)
{
    const struct broker *b = (const struct broker *)sk;
    const char *text = b->caution[b->cautions % CAUTIONS];
    return text[0] != '\0' ? text : NULL;
}

size_t broker_marks(struct sink *sk, const struct hwm **ret)
{
    return window_marks_list(&((struct broker *)sk)->marks, ret);
}

void broker_marks_recorded(struct sink *sk)
{
    window_marks_recorded(&((struct broker *)sk)->marks);
}

/* The URL */

const struct option_def broker_url_options[] = {
    {"user", "NAME", NULL, "user name to log in with", option_copy,
     .at = offsetof(struct broker_url, user)},
    {"password-file", "FILE", NULL, "file with the password, reread for each connection",
     option_file, .at = offsetof(struct broker_url, password_file)},
    {"ca", "FILE", NULL, "trusted CA certificates; default: the system's", option_file,
     .at = offsetof(struct broker_url, ca)},
    {"cert", "FILE", NULL, "client certificate, for a broker that requires one", option_file,
     .at = offsetof(struct broker_url, cert)},
    {"key", "FILE", NULL, "private key of the client certificate", option_file,
     .at = offsetof(struct broker_url, key)},
    {NULL},
};

/* The targets of a URL's parts, and how to parse them. */
struct reading {
    struct broker_url *url;
    const char *default_port, *password_env;
    const struct option_def *table;
    void *target;
};

/* Returns the row whose name ends with a star and matches `name`, as "rdkafka.*" matches
 * "rdkafka.linger.ms"; NULL if none does. */
static const struct option_def *pattern_of(const struct option_def *table, const char *name)
{
    for (; table && table->name; table++) {
        size_t n = strlen(table->name) - 1;
        bool pattern = table->name[n] == '*';
        if (pattern && strncmp(name, table->name, n) == 0)
            return table;
    }
    return NULL;
}

/* Passes the rest of the name and the value to such a row, as in "linger.ms=5". */
static int set_pattern(const struct option_def *o, void *target, const char *name,
                       const char *value, struct error *err)
{
    struct buf text;
    buf_init(&text, PATH_MAX_BYTES);
    buf_addf(&text, "%s=%s", name + strlen(o->name) - 1, value);
    const char *pair = buf_cstr(&text);
    int rc;
    if (pair)
        rc = option_apply(o, target, pair, err);
    else
        rc = err_nomem(err);
    buf_release(&text);
    if (rc != 0)
        return err_prefix(err, "%s", name);
    return 0;
}

/* Passes one name=value to our table if it has the name, otherwise to the caller's table. Without a
 * caller's table, ours suggests the nearest name. */
static int set_parameter(void *ctx, const char *name, const char *value, struct error *err)
{
    const struct reading *r = ctx;
    bool ours = option_find(broker_url_options, name) != NULL;
    if (ours || !r->table)
        return option_set(broker_url_options, r->url, name, value, err);
    const struct option_def *pattern = pattern_of(r->table, name);
    if (pattern)
        return set_pattern(pattern, r->target, name, value, err);
    return option_set(r->table, r->target, name, value, err);
}

static int add_host(const struct reading *r, struct str s, struct error *err)
{
    struct broker_url *u = r->url;
    if (u->n_hosts == BROKER_HOSTS_MAX)
        return err_set(err, ERR_CONFIG, "more than %d hosts; a few bootstrap hosts are enough",
                       BROKER_HOSTS_MAX);
    struct broker_host *more = reallocarray(u->hosts, u->n_hosts + 1, sizeof *more);
    if (!more)
        return err_nomem(err);
    u->hosts = more;

    struct broker_host *h = &more[u->n_hosts++];
    *h = (struct broker_host){0};
    return url_host_port(s, r->default_port, &h->host, &h->port, err);
}

/* Parses host[:port][,host[:port]...]. An empty list means the local host; an empty entry in a
 * longer list is an error. */
static int read_hosts(const struct reading *r, struct str s, struct error *err)
{
    const char *comma;
    while ((comma = memchr(s.p, ',', s.n))) {
        struct str one = {s.p, (size_t)(comma - s.p)};
        if (one.n == 0)
            return err_set(err, ERR_CONFIG, "a host is missing before a comma");
        if (add_host(r, one, err) != 0)
            return -1;
        s = url_after(s, comma);
    }
    if (s.n == 0 && r->url->n_hosts > 0)
        return err_set(err, ERR_CONFIG, "a host is missing after the last comma");
    return add_host(r, s, err);
}

/* Parses [user@]hosts. */
static int read_authority(const struct reading *r, struct str s, struct error *err)
{
    char user[URL_PART_MAX];
    const char *at = memrchr(s.p, '@', s.n);
    if (!at)
        return read_hosts(r, s, err);
    if (url_user((struct str){s.p, (size_t)(at - s.p)}, r->password_env, user, err) != 0)
        return -1;
    if (user[0] != '\0' && option_copy(&r->url->user, user, NULL, err) != 0)
        return -1;
    return read_hosts(r, url_after(s, at), err);
}

static void make_label(struct broker_url *u)
{
    const struct broker_host *first = &u->hosts[0];
    char others[40] = "";
    if (u->n_hosts == 2)
        snprintf(others, sizeof others, " and 1 other");
    if (u->n_hosts > 2)
        snprintf(others, sizeof others, " and %zu others", u->n_hosts - 1);
    snprintf(u->label, sizeof u->label, "%.30s at %.200s:%.10s%s", u->scheme, first->host,
             first->port, others);
}

/* Parses the part before the parameters. */
static int read_address(const struct reading *r, const char *text, struct error *err)
{
    char scheme[32], path[PATH_MAX_BYTES] = "";
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+-");
    const char *colon = text + n;
    bool named = n > 0 && n < sizeof scheme && strncmp(colon, "://", 3) == 0;
    if (!named)
        return err_set(err, ERR_CONFIG, "write KIND://HOST:PORT/...");
    snprintf(scheme, sizeof scheme, "%.*s", (int)n, text);
    if (option_copy(&r->url->scheme, scheme, NULL, err) != 0)
        return -1;

    struct str authority = {colon + 3, strcspn(colon + 3, "/?")};
    const char *slash = authority.p + authority.n;
    if (read_authority(r, authority, err) != 0)
        return -1;
    struct str rest = {slash, strcspn(slash, "?")};
    if (rest.n > 1 && url_decode(url_after(rest, slash), path, sizeof path, err) != 0)
        return -1;
    if (option_copy(&r->url->path, path, NULL, err) != 0)
        return -1;
    make_label(r->url);
    return 0;
}

int broker_url_parse(const char *text, const char *default_port, const char *password_env,
                     const struct option_def *table, void *target, struct broker_url *ret,
                     struct error *err)
{
    struct reading r = {ret, default_port, password_env, table, target};
    *ret = (struct broker_url){0};

    if (table && option_defaults(table, target, err) != 0)
        return -1;
    if (read_address(&r, text, err) != 0)
        return -1;
    const char *query = strchr(text, '?');
    if (query && url_parameters(query + 1, password_env, set_parameter, &r, err) != 0)
        return -1;
    bool has_cert = ret->cert != NULL, has_key = ret->key != NULL;
    if (has_cert != has_key)
        return err_set(err, ERR_CONFIG, "cert and key go together");
    return url_password_env(password_env, &ret->password, err);
}

void broker_url_release(struct broker_url *u)
{
    char *const all[] = {u->scheme,   u->user, u->path, u->password_file,
                         u->password, u->ca,   u->cert, u->key};
    if (u->password)
        explicit_bzero(u->password, strlen(u->password));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    for (size_t i = 0; i < u->n_hosts; i++) {
        free(u->hosts[i].host);
        free(u->hosts[i].port);
    }
    free(u->hosts);
    *u = (struct broker_url){0};
}

int broker_url_check_files(const struct broker_url *u, struct error *err)
{
    const char *const files[] = {u->password_file, u->ca, u->cert, u->key};
    return broker_check_files(files, sizeof files / sizeof files[0], err);
}

char *broker_url_password(const struct broker_url *u, struct error *err)
{
    return url_password(u->password_file, u->password, err);
}
