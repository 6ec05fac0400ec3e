/* nats_settings.c: the parameters in the URL of a NATS sink. */
#include <stdlib.h>

#include "base/text.h"
#include "sink/nats_impl.h"

#define TAIL_MAX 100000

static const char *const on_off[] = {"off", "on", NULL};
static const char *const msg_ids[] = {
    [NATS_ID_CONSUMER] = "consumer", [NATS_ID_EVENT] = "event", NULL};

static const struct option_def options[] = {
    {"stream", "NAME", NULL, "the JetStream stream that stores the events", option_copy,
     .at = offsetof(struct nats_settings, stream)},
    {"format", "NAME", "plain", "how an event becomes a message", option_choice,
     .at = offsetof(struct nats_settings, format), .names = message_formats},
    {"source", "URI", NULL, "source of CloudEvents", option_copy,
     .at = offsetof(struct nats_settings, source)},
    {"create", "on|off", "off", "make the stream if it does not exist", option_either,
     .at = offsetof(struct nats_settings, create), .names = on_off},
    {"replicas", "N", "1", "copies that a stream we make has", option_long,
     .at = offsetof(struct nats_settings, replicas), .min = 1, .max = 5},
    {"exclusive", "on|off", "off",
     "nobody else writes to the stream: many events of a key in flight, none stored twice",
     option_either, .at = offsetof(struct nats_settings, exclusive), .names = on_off},
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

/* check_name refuses what can be no stream or domain: it becomes a token of a subject. */
static int check_name(const char *what, const char *name, struct error *err)
{
    size_t n = strlen(name);
    bool bad = n == 0 || n > 255 || strpbrk(name, " .*>/\\") || !text_plain(str_of(name));
    if (bad)
        return err_set(err, ERR_CONFIG,
                       "nats sink: %s must be a name without blanks, dots, slashes, * and >", what);
    return 0;
}

/* check_login refuses two ways to log in at once. */
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
    return 0;
}

static int check_tls(const struct broker_url *u, struct error *err)
{
    bool tls = strcmp(u->scheme, "nats") != 0;
    bool has_files = u->ca || u->cert;
    if (has_files && !tls)
        return err_set(err, ERR_CONFIG, "nats sink: ca, cert and key are for nats+tls://");
    return 0;
}

int nats_settings_read(const char *url, struct nats_settings *s, struct broker_url *u,
                       struct error *err)
{
    *s = (struct nats_settings){0};
    if (option_defaults(options, s, err) != 0)
        return -1;
    if (broker_url_parse(url, "4222", NATS_PASSWORD_ENV, options, s, u, err) != 0)
        return err_prefix(err, "nats sink");
    if (!s->stream)
        return err_set(err, ERR_CONFIG,
                       "nats sink: which stream? add ?stream=NAME; without one, NATS would drop "
                       "what nobody listens to");
    if (check_name("stream", s->stream, err) != 0)
        return -1;
    if (s->domain && check_name("domain", s->domain, err) != 0)
        return -1;
    if (s->exclusive && s->lookback < s->window)
        return err_set(err, ERR_CONFIG,
                       "nats sink: exclusive=on needs a lookback of at least window, %lld",
                       (long long)s->window);
    if (check_login(s, u, err) != 0)
        return -1;
    return check_tls(u, err);
}

void nats_settings_release(struct nats_settings *s)
{
    char *const all[] = {s->stream, s->source,    s->domain,    s->creds_file,
                         s->nkey,   s->nkey_file, s->token_file};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    *s = (struct nats_settings){0};
}
