/* nats_answer.c: maps JetStream's replies, and missing replies, to the results of events. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sink/nats_impl.h"

#define REFUSED_NS (100 * MS_NS) /* before a stream that accepts nothing is queried again */
#define RECEIPT 64

/* The table of replies, documented in docs/brokers.md; a test compares the two. */
static const struct nats_meaning meanings[] = {
    /* The server is unavailable, out of space, or denies access. */
    {10002, NULL, SINK_DOWN, "the account has used up its storage"},
    {10008, NULL, SINK_DOWN, "JetStream is temporarily unavailable"},
    {10009, NULL, SINK_DOWN, "the cluster has no leader at the moment"},
    {10023, NULL, SINK_DOWN, "the server has used up its storage"},
    {10028, NULL, SINK_DOWN, "the server has no memory left for streams"},
    {10039, NULL, SINK_DOWN, "JetStream is not enabled for the account"},
    {10047, NULL, SINK_DOWN, "the server has no storage left for streams"},
    {10076, NULL, SINK_DOWN, "JetStream is not enabled"},
    {10120, NULL, SINK_DOWN, "the account has no limits for this kind of stream"},

    /* The stream is unavailable; temporary. */
    {10063, NULL, SINK_DOWN, "the stream is catching up with its leader"},
    {10070, NULL, SINK_DOWN, "another client has written to the stream, with exclusive=on"},
    {10071, NULL, SINK_DOWN, "another client has written to the stream, with exclusive=on"},
    {10077, "per subject", SINK_REFUSED, "the subject is full, with discard_new_per_subject"},
    {10077, NULL, SINK_DOWN, "the stream is full, with discard=new, or could not write"},
    {10118, NULL, SINK_DOWN, "the stream is offline"},

    /* The stream or the subject. */
    {10059, NULL, SINK_REFUSED, "the stream does not exist"},
    {10060, NULL, SINK_REFUSED, "the subject belongs to a stream other than the one in the URL"},
    {10065, NULL, SINK_REFUSED, "with create=on: another stream has its subjects"},
    {10109, NULL, SINK_REFUSED, "the stream is sealed"},

    /* Event. */
    {10054, NULL, SINK_REJECT, "larger than the stream's max_msg_size"},
    {10097, NULL, SINK_REJECT, "more than 64 KiB of headers"},

    {0, NULL, SINK_RETRY, "anything else"},
};

const struct nats_meaning *nats_answer_meaning(int code, const char *words)
{
    const struct nats_meaning *m = meanings;
    for (; m->code; m++) {
        bool matches = m->code == code && (!m->says || strstr(words, m->says));
        if (matches)
            break;
    }
    return m;
}

/* Ending events */

void nats_answer_end(struct nats_sink *n, struct nats_item *it, const struct sink_result *r)
{
    if (it->token)
        n->by_token[it->token & (NATS_WINDOW_MAX - 1)] = NULL;
    window_end(&n->b.window, &it->f, r);
}

void nats_answer_all(struct nats_sink *n, const struct sink_result *r)
{
    nats_link_drop(n->link, 0);
    n->link = NULL;
    n->ready = false;
    n->stream = NULL;
    memset(n->by_token, 0, NATS_WINDOW_MAX * sizeof *n->by_token);
    window_end_all(&n->b.window, r);
}

void nats_answer_lost(struct nats_sink *n, const struct error *err)
{
    struct sink_result r = {.status = SINK_DOWN, .native = err->native, .text = err->text};
    if (err->retry_class == CLASS_FATAL)
        r.status = SINK_FATAL;
    if (err->retry_class == CLASS_RETRY) {
        r.status = SINK_REFUSED;
        n->refused = *err;
        n->refused_until = broker_now(&n->b) + REFUSED_NS;
    }
    nats_answer_all(n, &r);
}

/* Advances the high-water mark of the stream and writes the receipt. */
static void note_stored(struct nats_sink *n, uint64_t seq, char receipt[RECEIPT])
{
    snprintf(receipt, RECEIPT, "%.40s/%llu", n->plan->set.stream, (unsigned long long)seq);
    struct stream *st = window_marks_get(&n->b.marks, str_of(n->plan->set.stream));
    if (st)
        window_marks_advance(&n->b.marks, st, (int64_t)seq, 0);
}

void nats_answer_found(struct nats_sink *n, struct delivery *d, uint64_t seq)
{
    char receipt[RECEIPT];
    note_stored(n, seq, receipt);
    sink_done(&n->b.base, d, &(struct sink_result){.status = SINK_DELIVERED, .receipt = receipt});
}

void nats_answer_stored(struct nats_sink *n, struct nats_item *it, uint64_t seq)
{
    char receipt[RECEIPT];
    struct sink_result r = {.status = SINK_DELIVERED};
    while (n->plan->set.exclusive && n->b.window.first != &it->f)
        nats_answer_end(n, (struct nats_item *)n->b.window.first, &r);
    note_stored(n, seq, receipt);
    r.receipt = receipt;
    nats_answer_end(n, it, &r);
}

/* Ends an event that was not stored. In a chain, no later event was stored either, and the next
 * link looks up the earlier ones. An event that the server refused counts as faulty only once it is
 * the first of the chain: before that, the outcome of its predecessors is unknown. */
static void refused(struct nats_sink *n, struct nats_item *it, const struct sink_result *r)
{
    if (!n->plan->set.exclusive) {
        nats_answer_end(n, it, r);
        return;
    }
    struct sink_result others = {.status = SINK_DOWN, .native = r->native, .text = r->text};
    if (r->status == SINK_FATAL)
        others.status = SINK_FATAL;
    if (r->status == SINK_REFUSED) {
        others.status = SINK_CANCELLED;
        if (&it->f == n->b.window.first)
            nats_answer_end(n, it, r);
    }
    nats_answer_all(n, &others);
}

/* Returns the subject of an event that was sent; "" if out of memory. */
static const char *subject_of(struct nats_sink *n, const struct event *ev)
{
    struct error ignored;
    const char *subject = nats_message_subject(n, ev, &ignored);
    return subject ? subject : "";
}

/* Reports an event that no stream accepted. If the stream does not include its subject, the event
 * is refused. Otherwise the stream has no leader or was deleted; the next link finds out which. */
static void no_stream(struct nats_sink *n, struct nats_item *it)
{
    char text[600], subject[200];
    struct sink_result r = {.status = SINK_DOWN, .native = 503, .text = text};
    const char *name = subject_of(n, it->f.d->ev);
    text_clean(subject, sizeof subject, name, strlen(name));
    bool accepted = n->b.fixed || nats_stream_accepts(n->stream, str_of(name));
    if (accepted) {
        snprintf(text, sizeof text,
                 "%s: no stream accepts %s at the moment: stream %s has no leader, or was deleted",
                 n->plan->url.label, subject, n->plan->set.stream);
    } else {
        r.status = SINK_REFUSED;
        snprintf(text, sizeof text, "%s: stream %s does not include the subject %s",
                 n->plan->url.label, n->plan->set.stream, subject);
    }
    refused(n, it, &r);
    if (accepted && n->b.window.count == 0 && n->link)
        nats_answer_all(n, &r);
}

/* Ends all events for a subject that the user may not publish to. */
static void not_allowed(struct nats_sink *n, const char *subject)
{
    char text[600], clean[200];
    text_clean(clean, sizeof clean, subject, strlen(subject));
    snprintf(text, sizeof text, "%s: the user may not publish to %s", n->plan->url.label, clean);
    struct sink_result r = {.status = SINK_REFUSED, .text = text};
    struct in_flight *next;
    for (struct in_flight *f = n->b.window.first; f && n->link; f = next) {
        struct nats_item *it = (struct nats_item *)f;
        next = f->next;
        if (it->token && strcmp(subject_of(n, f->d->ev), subject) == 0)
            refused(n, it, &r);
    }
}

void nats_answer_handle(struct nats_sink *n, const struct nats_answer *a)
{
    if (a->kind == NATS_NOT_ALLOWED) {
        not_allowed(n, a->text);
        return;
    }
    struct nats_item *it = n->by_token[a->token & (NATS_WINDOW_MAX - 1)];
    bool awaited = it && it->token == a->token;
    if (!awaited) /* the event was cancelled */
        return;
    n->replied_at = broker_now(&n->b);

    char text[600];
    const char *said = a->text ? a->text : "";
    const struct nats_meaning *m = nats_answer_meaning(a->code, said);
    struct sink_result r = {.status = SINK_RETRY, .text = text};
    switch (a->kind) {
    case NATS_STORED: nats_answer_stored(n, it, a->seq); return;
    case NATS_NO_STREAM: no_stream(n, it); return;
    case NATS_REFUSED:
        r.status = m->status;
        r.native = a->code;
        snprintf(text, sizeof text, "%s, stream %s: %s (%d)", n->plan->url.label,
                 n->plan->set.stream, said[0] ? said : m->meaning, a->code);
        break;
    case NATS_TOO_LARGE:
        r.status = SINK_REJECT;
        r.text = "it is larger than the server's max_payload";
        break;
    case NATS_NOT_ANSWERED:
    case NATS_NOT_ALLOWED:
        snprintf(
            text, sizeof text,
            "%s: the reply for stream %s is not from JetStream: does another service subscribe "
            "to its subjects and reply?",
            n->plan->url.label, n->plan->set.stream);
        break;
    }
    refused(n, it, &r);
}
