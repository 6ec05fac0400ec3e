/* nats_answer.c: what the answers of JetStream, or their absence, mean for the events. */
#include <stdio.h>

#include "base/text.h"
#include "sink/nats_fate.h"
#include "sink/nats_impl.h"
#include "sink/nats_subject.h"

#define REFUSED_NS (100 * MS_NS) /* how long not to ask again after a stream that takes nothing */

/* unlink_flight takes a flight out of the list. */
static void unlink_flight(struct nats_sink *n, struct flight *f)
{
    if (f->prev)
        f->prev->next = f->next;
    else
        n->first = f->next;
    if (f->next)
        f->next->prev = f->prev;
    else
        n->last = f->prev;
}

void nats_end(struct nats_sink *n, struct flight *f, const struct sink_result *r)
{
    struct delivery *d = f->d;
    unlink_flight(n, f);
    n->count--;
    n->bytes -= f->bytes;
    if (f->token)
        n->by_token[f->token & (NATS_WINDOW_MAX - 1)] = NULL;
    *f = (struct flight){.next = n->free};
    n->free = f;
    sink_done(&n->base, d, r);
}

void nats_end_all(struct nats_sink *n, enum sink_status status, int native, const char *text)
{
    struct sink_result r = {.status = status, .native = native, .text = text};
    while (n->first)
        nats_end(n, n->first, &r);
}

static void drop_link(struct nats_sink *n)
{
    nats_link_drop(n->link, 0);
    n->link = NULL;
    n->ready = false;
    n->stream = NULL;
}

void nats_give_up(struct nats_sink *n, const struct error *err)
{
    enum sink_status status = SINK_DOWN;
    if (err->retry_class == CLASS_FATAL)
        status = SINK_FATAL;
    if (err->retry_class == CLASS_RETRY) {
        status = SINK_REFUSED;
        n->refused = *err;
        n->refused_until = nats_now(n) + REFUSED_NS;
    }
    drop_link(n);
    nats_end_all(n, status, err->native, err->text);
}

/* note_mark moves the high-water mark of the stream. */
static void note_mark(struct nats_sink *n, uint64_t seq)
{
    struct stream *st = streams_get(&n->streams, str_of(n->set.stream));
    if (st)
        streams_note(&n->streams, st, (int64_t)seq, 0);
}

static void receipt_of(const struct nats_sink *n, uint64_t seq, char *out, size_t size)
{
    snprintf(out, size, "%.40s/%llu", n->set.stream, (unsigned long long)seq);
}

void nats_found(struct nats_sink *n, struct delivery *d, uint64_t seq)
{
    char receipt[64];
    receipt_of(n, seq, receipt, sizeof receipt);
    note_mark(n, seq);
    sink_done(&n->base, d, &(struct sink_result){.status = SINK_DELIVERED, .receipt = receipt});
}

/* stored answers for an event that is in the stream. In a chain, so is everything before it, even
 * if its answer was lost. */
static void stored(struct nats_sink *n, struct flight *f, const struct nats_answer *a)
{
    char receipt[64];
    struct sink_result r = {.status = SINK_DELIVERED};
    while (n->set.exclusive && n->first != f)
        nats_end(n, n->first, &r);
    receipt_of(n, a->seq, receipt, sizeof receipt);
    note_mark(n, a->seq);
    r.receipt = receipt;
    nats_end(n, f, &r);
}

/* refused ends an event that was not stored. In a chain nothing behind it was stored either: the
 * link begins anew, and finds out what was. There, an event that is refused for its own sake is
 * blamed once it is the first: what became of those before it is not known yet. */
static void refused(struct nats_sink *n, struct flight *f, const struct sink_result *r)
{
    struct error err;
    if (!n->set.exclusive) {
        nats_end(n, f, r);
        return;
    }
    if (r->status == SINK_REFUSED) {
        drop_link(n);
        if (f == n->first)
            nats_end(n, f, r);
        nats_end_all(n, SINK_CANCELLED, r->native, r->text);
        return;
    }
    enum retry_class fate = r->status == SINK_FATAL ? CLASS_FATAL : CLASS_DOWN;
    err_class(&err, ERR_UNAVAILABLE, fate, r->native, "%s", r->text);
    nats_give_up(n, &err);
}

static void refused_by_server(struct nats_sink *n, struct flight *f, const struct nats_answer *a)
{
    const struct nats_fate *fate = nats_fate_of(a->code, a->text ? a->text : "");
    char text[600];
    const char *said = a->text && *a->text ? a->text : fate->meaning;
    snprintf(text, sizeof text, "%s, stream %s: %s (%d)", n->plan->url.label, n->set.stream, said,
             a->code);
    refused(n, f, &(struct sink_result){.status = fate->status, .native = a->code, .text = text});
}

/* subject_of writes the subject of a flight; "" if that cannot be. */
static const char *subject_of(struct nats_sink *n, const struct flight *f)
{
    struct error err;
    buf_clear(&n->name);
    if (template_write_escaped(n->subject, f->d->ev, nats_subject_escape, &n->name, &err) != 0)
        return "";
    const char *subject = buf_cstr(&n->name);
    return subject ? subject : "";
}

/* nobody answers for an event that no stream took. While a stream has no leader that says nothing
 * about the event. Whether it has none, or is gone, is found out by the next link, which looks at
 * the stream. If the subject is not among those of the stream, the event is refused. */
static void nobody(struct nats_sink *n, struct flight *f)
{
    char text[600], subject[200];
    struct sink_result r = {.status = SINK_DOWN, .native = 503, .text = text};
    const char *name = subject_of(n, f);
    text_clean(subject, sizeof subject, name, strlen(name));
    bool ours = n->fixed || nats_stream_takes(n->stream, str_of(name));
    if (ours) {
        snprintf(text, sizeof text,
                 "%s: no stream takes %s at the moment: stream %s has no leader, or is gone",
                 n->plan->url.label, subject, n->set.stream);
    } else {
        r.status = SINK_REFUSED;
        snprintf(text, sizeof text, "%s: stream %s does not take the subject %s",
                 n->plan->url.label, n->set.stream, subject);
    }
    refused(n, f, &r);
    if (ours && n->count == 0 && n->link)
        drop_link(n);
}

static void too_large(struct nats_sink *n, struct flight *f)
{
    refused(n, f,
            &(struct sink_result){.status = SINK_REJECT,
                                  .text = "it is larger than the server's max_payload"});
}

/* odd answers for an event whose answer makes no sense. */
static void odd(struct nats_sink *n, struct flight *f)
{
    char text[500];
    snprintf(text, sizeof text,
             "%s: what answers for stream %s is not JetStream: does somebody else listen to its "
             "subjects, and reply?",
             n->plan->url.label, n->set.stream);
    refused(n, f, &(struct sink_result){.status = SINK_RETRY, .text = text});
}

/* not_allowed ends all events that go to a subject which the user may not publish to. */
static void not_allowed(struct nats_sink *n, const char *subject)
{
    char text[600], clean[200];
    text_clean(clean, sizeof clean, subject, strlen(subject));
    snprintf(text, sizeof text, "%s: the user may not publish to %s", n->plan->url.label, clean);
    struct sink_result r = {.status = SINK_REFUSED, .text = text};
    struct flight *f = n->first;
    while (f) {
        struct flight *next = f->next;
        if (f->token && strcmp(subject_of(n, f), subject) == 0)
            refused(n, f, &r);
        f = n->link ? next : NULL;
    }
}

void nats_answer_take(struct nats_sink *n, const struct nats_answer *a)
{
    if (a->kind == NATS_NOT_ALLOWED) {
        not_allowed(n, a->text);
        return;
    }
    struct flight *f = n->by_token[a->token & (NATS_WINDOW_MAX - 1)];
    bool ours = f && f->token == a->token;
    if (!ours) /* it was given up before */
        return;
    n->heard_at = nats_now(n);

    switch (a->kind) {
    case NATS_STORED: stored(n, f, a); break;
    case NATS_REFUSED: refused_by_server(n, f, a); break;
    case NATS_NOBODY: nobody(n, f); break;
    case NATS_TOO_LARGE: too_large(n, f); break;
    case NATS_NOT_ANSWERED: odd(n, f); break;
    case NATS_NOT_ALLOWED: break;
    }
}
