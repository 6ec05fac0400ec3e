/* receive_nats.c: reads a JetStream stream from a given sequence number. An ordered consumer of
 * libnats acknowledges no message, and resumes after a disconnect. */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/text.h"
#include "base/utf8.h"
#include "extra/receive/receive.h"
#include "sink/nats_impl.h"

#define RECONNECT_MS 200
#define TEXT_MAX_BYTES ((size_t)4 << 20) /* all headers of a message, decoded */

/* `msg` is the last message returned; it owns `names`. */
struct nats_receiver {
    struct receiver base;
    struct nats_plan *plan;
    natsConnection *nc;
    jsCtx *js;
    natsSubscription *sub;
    natsMsg *msg;
    const char **names;
    struct buf text;
    char position[24];
};

static int connect_any_host(struct nats_receiver *rc, struct error *err)
{
    const struct url *u = &rc->plan->url;
    for (size_t i = 0; i < u->n_hosts && !rc->nc; i++) {
        natsOptions *o = NULL;
        *err = (struct error){0};
        if (natsOptions_Create(&o) != NATS_OK)
            return err_nomem(err);
        if (nats_connect_options(rc->plan, &u->hosts[i], o, err) == 0) {
            natsOptions_SetMaxReconnect(o, -1);
            natsOptions_SetReconnectWait(o, RECONNECT_MS);
            nats_tls_begin(NULL, rc->plan->timeout_ms);
            natsStatus s = natsConnection_Connect(&rc->nc, o);
            nats_tls_end();
            if (s != NATS_OK)
                nats_connect_failed(rc->plan, &u->hosts[i], s, err);
        }
        natsOptions_Destroy(o);
    }
    return rc->nc ? 0 : -1;
}

static int stream_failed(const struct nats_receiver *rc, natsStatus s, struct error *err)
{
    char said[200];
    nats_link_text(s, said, sizeof said);
    return err_set(err, ERR_UNAVAILABLE, "%s: stream %s: %s", rc->plan->url.label,
                   rc->plan->set.stream, said);
}

/* Parses the starting position: the beginning, the end, or a sequence number. */
static int set_start(const char *from, jsSubOptions *so, struct error *err)
{
    int64_t seq;
    if (strcmp(from, "beginning") == 0) {
        so->Config.DeliverPolicy = js_DeliverAll;
    } else if (strcmp(from, "end") == 0) {
        so->Config.DeliverPolicy = js_DeliverNew;
    } else {
        if (text_int(from, 1, INT64_MAX, &seq, err) != 0)
            return err_prefix(err, "--from: expected beginning, end, or a sequence number");
        so->Config.DeliverPolicy = js_DeliverByStartSequence;
        so->Config.OptStartSeq = (uint64_t)seq;
    }
    return 0;
}

static int subscribe(struct nats_receiver *rc, struct error *err)
{
    jsSubOptions so;
    jsOptions jo;
    jsSubOptions_Init(&so);
    jsOptions_Init(&jo);
    so.Stream = rc->plan->set.stream;
    so.Ordered = true;
    if (set_start(rc->base.cfg.from, &so, err) != 0)
        return -1;
    jo.Domain = rc->plan->set.domain;
    natsStatus s = natsConnection_JetStream(&rc->js, rc->nc, &jo);
    if (s == NATS_OK)
        s = js_SubscribeSync(&rc->sub, rc->js, rc->plan->set.subject, NULL, &so, NULL);
    if (s != NATS_OK)
        return stream_failed(rc, s, err);
    (void)natsSubscription_SetPendingLimits(rc->sub, -1, -1);
    return 0;
}

static void forget_message(struct nats_receiver *rc)
{
    free(rc->names);
    natsMsg_Destroy(rc->msg);
    rc->names = NULL;
    rc->msg = NULL;
}

static void nats_receive_end(struct receiver *base)
{
    struct nats_receiver *rc = (struct nats_receiver *)base;
    forget_message(rc);
    natsSubscription_Destroy(rc->sub);
    jsCtx_Destroy(rc->js);
    natsConnection_Destroy(rc->nc);
    nats_plan_release(rc->plan);
    buf_release(&rc->text);
}

static int nats_receive_begin(struct receiver *base, struct error *err)
{
    struct nats_receiver *rc = (struct nats_receiver *)base;
    struct sink_config as_sink = {.url = base->cfg.url, .consumer = "receive"};
    buf_init(&rc->text, TEXT_MAX_BYTES);
    if (nats_plan_read(&as_sink, &rc->plan, err) != 0)
        return -1;
    if (connect_any_host(rc, err) != 0)
        return -1;
    return subscribe(rc, err);
}

/* Returns a header's value. Decodes %XX in CloudEvents attributes into the text, which has room for
 * all values, so that it is never reallocated. */
static struct str header_value(struct nats_receiver *rc, const char *name, const char *value)
{
    if (strncasecmp(name, "ce-", 3) != 0)
        return str_of(value);
    struct buf *b = &rc->text;
    struct str s = str_of(value);
    size_t at = b->n;
    for (size_t i = 0; i < s.n; i++) {
        bool whole = s.p[i] == '%' && i + 2 < s.n;
        int high = whole ? char_hex(s.p[i + 1]) : -1;
        int low = whole ? char_hex(s.p[i + 2]) : -1;
        if (high < 0 || low < 0) {
            buf_addc(b, s.p[i]);
            continue;
        }
        buf_addc(b, (char)(high * 16 + low));
        i += 2;
    }
    return (struct str){b->p + at, b->n - at};
}

/* Skips headers that are addressed to the server. */
static void take_headers(struct nats_receiver *rc, struct message *m)
{
    int n = 0;
    if (natsMsgHeader_Keys(rc->msg, &rc->names, &n) != NATS_OK)
        return;
    buf_clear(&rc->text);
    buf_expect(&rc->text, 1 << 17); /* more than all headers of a message */
    for (int i = 0; i < n && m->n < MESSAGE_HEADERS; i++) {
        const char *value = NULL;
        const char *name = rc->names[i];
        bool servers = strncasecmp(name, "Nats-", 5) == 0;
        if (servers || natsMsgHeader_Get(rc->msg, name, &value) != NATS_OK)
            continue;
        struct str v = header_value(rc, name, value);
        if (strcasecmp(name, "content-type") == 0)
            m->content_type = v;
        else
            m->headers[m->n++] = (struct message_header){str_of(name), v};
    }
}

static void take_message(struct nats_receiver *rc, struct received *ret)
{
    jsMsgMetaData *meta = NULL;
    *ret = (struct received){.place = str_of(natsMsg_GetSubject(rc->msg))};
    ret->m.value = (struct str){natsMsg_GetData(rc->msg), (size_t)natsMsg_GetDataLength(rc->msg)};
    take_headers(rc, &ret->m);
    if (natsMsg_GetMetaData(&meta, rc->msg) == NATS_OK)
        snprintf(rc->position, sizeof rc->position, "%llu",
                 (unsigned long long)meta->Sequence.Stream);
    jsMsgMetaData_Destroy(meta);
    ret->position = str_of(rc->position);
}

static int nats_receive_step(struct receiver *base, int64_t wait_ms, struct received *ret,
                             bool *ret_got, struct error *err)
{
    struct nats_receiver *rc = (struct nats_receiver *)base;
    forget_message(rc);
    natsStatus s = natsSubscription_NextMsg(&rc->msg, rc->sub, wait_ms);
    if (s == NATS_TIMEOUT)
        return 0;
    if (s != NATS_OK)
        return stream_failed(rc, s, err);
    take_message(rc, ret);
    *ret_got = true;
    return 0;
}

const struct receiver_ops receive_nats = {
    .schemes = (const char *const[]){"nats", "nats+tls", NULL},
    .size = sizeof(struct nats_receiver),
    .begin = nats_receive_begin,
    .step = nats_receive_step,
    .end = nats_receive_end,
};
