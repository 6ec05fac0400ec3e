/* nats_settings.c: the URL of a NATS sink, and the plan shared by all its links. */
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "sink/nats_impl.h"

#define TAIL_MAX 100000
#define CONNECT_MS 5000 /* time limit for one host, and for one request */

static const char *const msg_ids[] = {
    [NATS_ID_CONSUMER] = "consumer", [NATS_ID_EVENT] = "event", NULL};

static const struct option_def options[] = {
    {"stream", "NAME", NULL, "the JetStream stream that stores the events", option_copy,
     .at = offsetof(struct nats_settings, stream)},
    BROKER_OPTIONS(nats_settings, "plain"),
    {"create", "on|off", "off", "create the stream if it does not exist", option_bool,
     .at = offsetof(struct nats_settings, create)},
    {"replicas", "N", "1", "number of replicas of a created stream", option_long,
     .at = offsetof(struct nats_settings, replicas), .min = 1, .max = 5},
    {"exclusive", "on|off", "off",
     "no other client writes to the stream: many events per key in flight, none stored twice",
     option_bool, .at = offsetof(struct nats_settings, exclusive)},
    {"msg-id", "consumer|event", "consumer",
     "Nats-Msg-Id: the event's id and the consumer's name, or only the event's id", option_choice,
     .at = offsetof(struct nats_settings, msg_id), .names = msg_ids},
    {"lookback", "N", "8192", "number of the stream's last messages in which to look up events",
     option_long, .at = offsetof(struct nats_settings, lookback), .max = TAIL_MAX},
    {"window", "N", "1024", "maximum number of events in flight", option_long,
     .at = offsetof(struct nats_settings, window), .min = 1, .max = NATS_WINDOW_MAX},
    {"domain", "NAME", NULL, "JetStream domain", option_copy,
     .at = offsetof(struct nats_settings, domain)},
    {"creds-file", "FILE", NULL, "credentials: a JWT and its key, reread for each connection",
     option_file, .at = offsetof(struct nats_settings, creds_file)},
    {"nkey", "KEY", NULL, "public key of a user; requires nkey-file", option_copy,
     .at = offsetof(struct nats_settings, nkey)},
    {"nkey-file", "FILE", NULL, "file with the seed of that key, reread for each connection",
     option_file, .at = offsetof(struct nats_settings, nkey_file)},
    {"token-file", "FILE", NULL,
     "file with the login token, reread for each connection; otherwise " NATS_TOKEN_ENV,
     option_file, .at = offsetof(struct nats_settings, token_file)},
    {NULL},
};

/* Rejects names that cannot be a stream or domain: the name becomes a token of a subject. */
static int check_name(const char *what, const char *name, struct error *err)
{
    size_t n = strlen(name);
    bool bad = n == 0 || n > 255 || strpbrk(name, " .*>/\\") || !text_plain(str_of(name));
    if (bad)
        return err_set(err, ERR_CONFIG, "%s must be a name without blanks, dots, slashes, * and >",
                       what);
    return 0;
}

/* Rejects two login methods at once, and TLS files without TLS. */
static int check_login(const struct nats_settings *s, const struct broker_url *u, struct error *err)
{
    int ways = (u->user != NULL) + (s->creds_file != NULL) + (s->nkey != NULL) +
               (s->token_file != NULL);
    if (ways > 1)
        return err_set(err, ERR_CONFIG, "use only one of USER@, creds-file, nkey and token-file");
    if (!s->nkey != !s->nkey_file)
        return err_set(err, ERR_CONFIG, "nkey and nkey-file go together");
    bool needs_user = u->password_file && !u->user;
    if (needs_user)
        return err_set(err, ERR_CONFIG,
                       "password-file requires a user: write nats://USER@HOST, or use token-file "
                       "for a token");
    bool tls = strcmp(u->scheme, "nats") != 0;
    bool has_files = u->ca || u->cert;
    if (has_files && !tls)
        return err_set(err, ERR_CONFIG, "ca, cert and key require nats+tls://");

    const char *const files[] = {s->creds_file, s->nkey_file, s->token_file};
    if (broker_url_check_files(u, err) != 0)
        return -1;
    return broker_check_files(files, sizeof files / sizeof files[0], err);
}

static int check_settings(const struct nats_settings *s, const struct broker_url *u,
                          struct error *err)
{
    if (!s->stream)
        return err_set(err, ERR_CONFIG,
                       "the URL names no stream: add ?stream=NAME; without one, NATS drops "
                       "messages without a subscriber");
    if (check_name("stream", s->stream, err) != 0)
        return -1;
    if (s->domain && check_name("domain", s->domain, err) != 0)
        return -1;
    if (s->exclusive && s->lookback < s->window)
        return err_set(err, ERR_CONFIG, "exclusive=on requires a lookback of at least window, %lld",
                       (long long)s->window);
    return check_login(s, u, err);
}

/* Reads the template of the subject, and derives the pattern that matches all its subjects. */
static int read_subject(struct nats_plan *p, struct error *err)
{
    struct template *t = NULL;
    bool routed = p->set.format == MESSAGE_DEBEZIUM && p->url.path[0] == '\0';
    if (routed && option_copy(&p->url.path, BROKER_DEBEZIUM_ROUTE, NULL, err) != 0)
        return -1;
    const char *text = p->url.path;
    if (*text && template_new(text, &t, err) != 0)
        return err_prefix(err, "subject");
    p->stream.fixed = t && template_fixed(t);
    template_free(t);
    if (nats_subject_check(text, err) != 0)
        return -1;

    struct buf pattern;
    buf_init(&pattern, NATS_SUBJECT_MAX);
    nats_subject_pattern(text, &pattern);
    const char *subject = buf_cstr(&pattern);
    p->stream.subject = subject ? strdup(subject) : NULL;
    buf_release(&pattern);
    return p->stream.subject ? 0 : err_nomem(err);
}

static int read_plan(struct nats_plan *p, const char *url, struct error *err)
{
    struct nats_settings *s = &p->set;
    if (broker_url_parse(url, "4222", NATS_PASSWORD_ENV, options, s, &p->url, err) != 0)
        return -1;
    if (check_settings(s, &p->url, err) != 0)
        return -1;
    if (read_subject(p, err) != 0)
        return -1;

    snprintf(p->api, sizeof p->api, s->domain ? "$JS.%s.API" : "$JS%s.API",
             s->domain ? s->domain : "");
    p->tls = strcmp(p->url.scheme, "nats") != 0;
    bool other_login = p->url.user || s->creds_file || s->nkey || s->token_file;
    if (!other_login && option_copy_maybe(&p->token, getenv(NATS_TOKEN_ENV), err) != 0)
        return -1;
    p->stream.name = s->stream;
    p->stream.create = s->create;
    p->stream.replicas = s->replicas;
    p->stream.exclusive = s->exclusive;
    p->stream.lookback = s->lookback;
    return 0;
}

int nats_plan_read(const struct sink_config *cfg, struct nats_plan **ret, struct error *err)
{
    struct nats_plan *p = calloc(1, sizeof *p);
    *ret = p;
    if (!p)
        return err_nomem(err);
    atomic_store(&p->refs, 1);
    p->timeout_ms = CONNECT_MS;
    if (cfg->timeout_ms > 0 && cfg->timeout_ms < CONNECT_MS)
        p->timeout_ms = cfg->timeout_ms;
    snprintf(p->client, sizeof p->client, "outbox:%s", cfg->consumer);
    if (read_plan(p, cfg->url, err) != 0)
        return err_prefix(err, "nats sink");
    return 0;
}

void nats_plan_release(struct nats_plan *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) > 1)
        return;
    broker_settings_release(options, &p->set);
    broker_url_release(&p->url);
    free(p->stream.subject);
    if (p->token)
        explicit_bzero(p->token, strlen(p->token));
    free(p->token);
    free(p);
}
