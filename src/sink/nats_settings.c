/* nats_settings.c: the URL of a NATS sink, and the plan shared by all its connections. */
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "sink/nats_impl.h"
#include "sink/nats_subject.h"

#define TAIL_MAX 100000
#define CONNECT_MS 5000 /* for one host, and for one request */

static const char *const msg_ids[] = {
    [NATS_ID_CONSUMER] = "consumer", [NATS_ID_EVENT] = "event", NULL};

static const struct option_def options[] = {
    {"stream", "NAME", NULL, "the JetStream stream that stores the events", option_copy,
     .at = offsetof(struct nats_settings, stream)},
    BROKER_OPTIONS(nats_settings, "plain"),
    {"create", "on|off", "off", "make the stream if it does not exist", option_bool,
     .at = offsetof(struct nats_settings, create)},
    {"replicas", "N", "1", "copies that a stream we make has", option_long,
     .at = offsetof(struct nats_settings, replicas), .min = 1, .max = 5},
    {"exclusive", "on|off", "off",
     "no other client writes to the stream: many events of a key in flight, none stored twice",
     option_bool, .at = offsetof(struct nats_settings, exclusive)},
    {"msg-id", "consumer|event", "consumer",
     "Nats-Msg-Id is the event's id and the consumer's name, or the event's id alone",
     option_choice, .at = offsetof(struct nats_settings, msg_id), .names = msg_ids},
    {"lookback", "N", "8192", "how many of the stream's last messages to look for events in",
     option_long, .at = offsetof(struct nats_settings, lookback), .max = TAIL_MAX},
    {"window", "N", "1024", "events in flight at most", option_long,
     .at = offsetof(struct nats_settings, window), .min = 1, .max = NATS_WINDOW_MAX},
    {"domain", "NAME", NULL, "domain of JetStream", option_copy,
     .at = offsetof(struct nats_settings, domain)},
    {"creds-file", "FILE", NULL, "credentials: a JWT and its key, read at each connection",
     option_file, .at = offsetof(struct nats_settings, creds_file)},
    {"nkey", "KEY", NULL, "the public key of a user, with nkey-file", option_copy,
     .at = offsetof(struct nats_settings, nkey)},
    {"nkey-file", "FILE", NULL, "the seed of that key, read at each connection", option_file,
     .at = offsetof(struct nats_settings, nkey_file)},
    {"token-file", "FILE", NULL,
     "token to log in with, read at each connection; else " NATS_TOKEN_ENV, option_file,
     .at = offsetof(struct nats_settings, token_file)},
    {NULL},
};

/* Refuses names that cannot be a stream or domain: they become a token of a subject. */
static int check_name(const char *what, const char *name, struct error *err)
{
    size_t n = strlen(name);
    bool bad = n == 0 || n > 255 || strpbrk(name, " .*>/\\") || !text_plain(str_of(name));
    if (bad)
        return err_set(err, ERR_CONFIG,
                       "nats sink: %s must be a name without blanks, dots, slashes, * and >", what);
    return 0;
}

/* Refuses two ways to log in at once, and TLS files without TLS. */
static int check_login(const struct nats_settings *s, const struct broker_url *u, struct error *err)
{
    int ways = (u->user != NULL) + (s->creds_file != NULL) + (s->nkey != NULL) +
               (s->token_file != NULL);
    if (ways > 1)
        return err_set(err, ERR_CONFIG,
                       "nats sink: use one of a user, creds-file, nkey and token-file");
    if (!s->nkey != !s->nkey_file)
        return err_set(err, ERR_CONFIG, "nats sink: nkey and nkey-file go together");
    bool needs_user = u->password_file && !u->user;
    if (needs_user)
        return err_set(err, ERR_CONFIG,
                       "nats sink: password-file takes a user: write nats://USER@HOST, or "
                       "token-file for a token");
    bool tls = strcmp(u->scheme, "nats") != 0;
    bool has_files = u->ca || u->cert;
    if (has_files && !tls)
        return err_set(err, ERR_CONFIG, "nats sink: ca, cert and key are for nats+tls://");
    return 0;
}

static int read_settings(const char *url, struct nats_settings *s, struct broker_url *u,
                         struct error *err)
{
    *s = (struct nats_settings){0};
    if (option_defaults(options, s, err) != 0)
        return -1;
    if (broker_url_parse(url, "4222", NATS_PASSWORD_ENV, options, s, u, err) != 0)
        return err_prefix(err, "nats sink");
    if (!s->stream)
        return err_set(err, ERR_CONFIG,
                       "nats sink: which stream? add ?stream=NAME; without one, NATS drops "
                       "messages without a subscriber");
    if (check_name("stream", s->stream, err) != 0)
        return -1;
    if (s->domain && check_name("domain", s->domain, err) != 0)
        return -1;
    if (s->exclusive && s->lookback < s->window)
        return err_set(err, ERR_CONFIG,
                       "nats sink: exclusive=on needs a lookback of at least window, %lld",
                       (long long)s->window);
    return check_login(s, u, err);
}

void nats_settings_release(struct nats_settings *s)
{
    char *const all[] = {s->stream, s->source,    s->domain,    s->creds_file,
                         s->nkey,   s->nkey_file, s->token_file};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    *s = (struct nats_settings){0};
}

/* The plan */

void nats_plan_release(struct nats_plan *plan)
{
    if (!plan || atomic_fetch_sub(&plan->refs, 1) > 1)
        return;
    char *const all[] = {plan->creds_file,     plan->nkey,    plan->nkey_file,
                         plan->token_file,     plan->api,     plan->stream.name,
                         plan->stream.subject, plan->template};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    if (plan->token)
        explicit_bzero(plan->token, strlen(plan->token));
    free(plan->token);
    broker_url_release(&plan->url);
    free(plan);
}

static char *copy_text(const char *s)
{
    return s ? strdup(s) : NULL;
}

static int read_subject(struct nats_plan *p, const struct nats_settings *s, struct error *err)
{
    const char *text = p->url.path;
    if (*text == '\0' && s->format == MESSAGE_DEBEZIUM) /* the name used by Debezium's router */
        text = "outbox.event.{aggregate_type}";
    struct template *t = NULL;
    struct buf pattern;
    if (*text && template_new(text, &t, err) != 0)
        return err_prefix(err, "nats sink: subject");
    if (t)
        p->stream.fixed = template_fixed(t);
    template_free(t);
    if (nats_subject_check(text, err) != 0)
        return err_prefix(err, "nats sink");

    buf_init(&pattern, NATS_SUBJECT_MAX);
    nats_subject_pattern(text, &pattern);
    p->stream.subject = copy_text(buf_cstr(&pattern));
    buf_release(&pattern);
    p->template = copy_text(text);
    return p->stream.subject && p->template ? 0 : err_nomem(err);
}

/* Copies what connections need, because a plan may outlive the sink. */
static int copy_settings(struct nats_plan *p, const struct nats_settings *s, struct error *err)
{
    char api[300];
    snprintf(api, sizeof api, s->domain ? "$JS.%s.API" : "$JS%s.API", s->domain ? s->domain : "");
    p->api = strdup(api);
    p->tls = strcmp(p->url.scheme, "nats") != 0;
    p->creds_file = copy_text(s->creds_file);
    p->nkey = copy_text(s->nkey);
    p->nkey_file = copy_text(s->nkey_file);
    p->token_file = copy_text(s->token_file);
    bool other_login = p->url.user || s->creds_file || s->nkey || s->token_file;
    p->token = other_login ? NULL : copy_text(getenv(NATS_TOKEN_ENV));
    p->stream.name = copy_text(s->stream);
    p->stream.create = s->create;
    p->stream.replicas = s->replicas;
    p->stream.exclusive = s->exclusive;
    p->stream.lookback = s->lookback;
    return p->api && p->stream.name ? 0 : err_nomem(err);
}

int nats_plan_read(const struct sink_config *cfg, struct nats_settings *s, struct nats_plan **ret,
                   struct error *err)
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

    if (read_settings(cfg->url, s, &p->url, err) != 0)
        return -1;
    const struct broker_url *u = &p->url;
    const char *const files[] = {u->password_file, u->ca,        u->cert,      u->key,
                                 s->creds_file,    s->nkey_file, s->token_file};
    if (broker_check_files("nats", files, sizeof files / sizeof files[0], err) != 0)
        return -1;
    if (read_subject(p, s, err) != 0)
        return -1;
    return copy_settings(p, s, err);
}
