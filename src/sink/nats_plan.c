/* nats_plan.c: what all connections of a sink, or of a receiver, are made by. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sink/nats_impl.h"
#include "sink/nats_subject.h"

#define CONNECT_MS 5000 /* for one host, and for one question */

static struct nats_plan *new_plan(void)
{
    struct nats_plan *plan = calloc(1, sizeof *plan);
    if (plan)
        atomic_store(&plan->refs, 1);
    return plan;
}

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

/* check_files checks that the files which each connection will read are there: one that is missing
 * at the start is a mistake. */
static int check_files(const struct nats_plan *p, const struct nats_settings *s, struct error *err)
{
    const struct broker_url *u = &p->url;
    const char *const files[] = {u->password_file, u->ca,        u->cert,      u->key,
                                 s->creds_file,    s->nkey_file, s->token_file};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (files[i] && access(files[i], R_OK) != 0)
            return err_errno(err, ERR_CONFIG, errno, "nats sink: could not read %s", files[i]);
    return 0;
}

static char *copy(const char *s)
{
    return s ? strdup(s) : NULL;
}

/* subject_text returns the template of the subject. Debezium's router has one of its own. */
static const char *subject_text(const struct nats_plan *p, const struct nats_settings *s)
{
    if (*p->url.path == '\0' && s->format == MESSAGE_DEBEZIUM)
        return "outbox.event.{aggregate_type}";
    return p->url.path;
}

static int read_subject(struct nats_plan *p, const struct nats_settings *s, struct error *err)
{
    const char *text = subject_text(p, s);
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
    p->stream.subject = copy(buf_cstr(&pattern));
    buf_release(&pattern);
    p->template = copy(text);
    return p->stream.subject && p->template ? 0 : err_nomem(err);
}

/* copy_settings copies what connections need, because a plan may outlive the sink. */
static int copy_settings(struct nats_plan *p, const struct nats_settings *s, struct error *err)
{
    char api[300];
    snprintf(api, sizeof api, s->domain ? "$JS.%s.API" : "$JS%s.API", s->domain ? s->domain : "");
    p->api = strdup(api);
    p->tls = strcmp(p->url.scheme, "nats") != 0;
    p->creds_file = copy(s->creds_file);
    p->nkey = copy(s->nkey);
    p->nkey_file = copy(s->nkey_file);
    p->token_file = copy(s->token_file);
    bool other_login = p->url.user || s->creds_file || s->nkey || s->token_file;
    p->token = other_login ? NULL : copy(getenv(NATS_TOKEN_ENV));
    p->stream.name = copy(s->stream);
    p->stream.create = s->create;
    p->stream.replicas = s->replicas;
    p->stream.exclusive = s->exclusive;
    p->stream.lookback = s->lookback;
    return p->api && p->stream.name ? 0 : err_nomem(err);
}

int nats_plan_read(const struct sink_config *cfg, struct nats_settings *s, struct nats_plan **ret,
                   struct error *err)
{
    struct nats_plan *p = new_plan();
    *ret = p;
    if (!p)
        return err_nomem(err);
    p->timeout_ms = CONNECT_MS;
    if (cfg->timeout_ms > 0 && cfg->timeout_ms < CONNECT_MS)
        p->timeout_ms = cfg->timeout_ms;
    snprintf(p->client, sizeof p->client, "outbox:%s", cfg->consumer);

    if (nats_settings_read(cfg->url, s, &p->url, err) != 0)
        return -1;
    if (check_files(p, s, err) != 0)
        return -1;
    if (read_subject(p, s, err) != 0)
        return -1;
    return copy_settings(p, s, err);
}
