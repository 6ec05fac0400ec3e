/* nats_prepare.c: the queries of a link before the first event: whether the stream exists and
 * accepts our subjects, and its last messages. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/text.h"
#include "sink/nats_impl.h"

#define NO_STREAM 10059
#define REPEAT_NS (500 * MS_NS) /* before a request without a reply is repeated */

/* Receiving. These functions run in a thread of libnats. */

/* Keeps the reply to our last request and drops replies to earlier requests. */
static void keep_reply(struct nats_link *l, const char *number, natsMsg *msg)
{
    pthread_mutex_lock(&l->lock);
    bool awaited = nats_reply_token(number) == l->request && !l->replied;
    if (awaited) {
        l->replied = true;
        l->no_responders = natsMsg_IsNoResponders(msg);
    }
    if (awaited && !l->no_responders) {
        l->reply = msg;
        msg = NULL;
    }
    pthread_mutex_unlock(&l->lock);
    natsMsg_Destroy(msg);
    nats_link_flush(l);
}

/* Records the id of one of the stream's last messages. The message has its original subject. */
static void on_tail(natsConnection *nc, natsSubscription *sub, natsMsg *msg, void *closure)
{
    struct nats_link *l = closure;
    uint64_t seq, pending;
    (void)nc;
    (void)sub;
    const char *id = NULL, *place = natsMsg_GetReply(msg);
    bool of_stream = place && nats_reply_position(place, &seq, &pending);
    if (of_stream)
        (void)natsMsgHeader_Get(msg, "Nats-Msg-Id", &id);

    pthread_mutex_lock(&l->lock);
    if (of_stream && l->tail && id)
        nats_tail_add(l->tail, str_of(id), seq);
    bool last = of_stream && pending == 0;
    if (last)
        l->tail_done = true;
    pthread_mutex_unlock(&l->lock);
    natsMsg_Destroy(msg);
    if (last)
        nats_link_flush(l);
}

/* Queues the reply to an event for the sink. */
static void push_ack(struct nats_link *l, const char *token, natsMsg *msg)
{
    struct nats_answer a = {.kind = NATS_NO_STREAM};
    if (!natsMsg_IsNoResponders(msg))
        a = nats_reply_ack((struct str){natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg)});
    a.token = nats_reply_token(token);
    natsMsg_Destroy(msg);
    if (a.token)
        nats_link_push(l, a);
    else
        free(a.text);
}

/* Dispatches replies: INBOX.q1 is the reply to a request, INBOX.17 to an event. */
static void on_reply(natsConnection *nc, natsSubscription *sub, natsMsg *msg, void *closure)
{
    struct nats_link *l = closure;
    const char *rest = natsMsg_GetSubject(msg) + strlen(l->inbox) + 1;
    (void)nc;
    (void)sub;
    if (*rest == 'q')
        keep_reply(l, rest + 1, msg);
    else
        push_ack(l, rest, msg);
}

static void on_complete(void *closure)
{
    nats_link_unref(closure);
}

/* Subscribes fn to a subject. The link lives until on_complete is called. */
static int subscribe(struct nats_link *l, const char *subject, natsMsgHandler fn,
                     natsSubscription **ret, struct error *err)
{
    natsStatus s = natsConnection_Subscribe(ret, l->nc, subject, fn, l);
    if (s != NATS_OK)
        return nats_link_failed(l->plan, s, "inbox", err);
    nats_link_ref(l);
    s = natsSubscription_SetOnCompleteCB(*ret, on_complete, l);
    if (s != NATS_OK) {
        nats_link_unref(l);
        return nats_link_failed(l->plan, s, "inbox", err);
    }
    (void)natsSubscription_SetPendingLimits(*ret, -1, -1);
    return 0;
}

static int subscribe_inbox(struct nats_link *l, struct error *err)
{
    natsInbox *inbox = NULL;
    char all[sizeof l->inbox + 4];
    natsStatus s = natsInbox_Create(&inbox);
    if (s != NATS_OK)
        return nats_link_failed(l->plan, s, "inbox", err);
    snprintf(l->inbox, sizeof l->inbox, "%s", inbox);
    natsInbox_Destroy(inbox);
    snprintf(all, sizeof all, "%s.*", l->inbox);
    return subscribe(l, all, on_reply, &l->sub, err);
}

/* Requests */

/* Waits until a flag of the link is set, or until a deadline. Sets *ret to the flag. */
static int wait_until(struct nats_link *l, const bool *flag, int64_t until, bool *ret,
                      struct error *err)
{
    for (;;) {
        pthread_mutex_lock(&l->lock);
        bool set = *flag;
        pthread_mutex_unlock(&l->lock);
        int64_t left = until - clock_mono(&clock_system);
        if (set || left <= 0) {
            *ret = set;
            return 0;
        }
        if (nats_link_process(l, (int)(left / MS_NS) + 1, err) != 0)
            return -1;
    }
}

static int unanswered(const struct nats_link *l, const char *what, struct error *err)
{
    return err_set(
        err, ERR_UNAVAILABLE,
        "%s has not answered %s for %lld ms: the stream has no leader, or the user lacks "
        "a permission",
        l->plan->url.label, what, (long long)l->plan->timeout_ms);
}

/* Sends a request to JetStream and waits for the reply. `what` is its subject, such as
 * STREAM.INFO.orders. *ret is the reply, which lives until the next request. A request sent while
 * no leader exists is never answered, so it is repeated; a reply to any copy suffices. */
static int send_request(struct nats_link *l, const char *what, struct str body, struct json *ret,
                        struct error *err)
{
    char subject[400], reply[sizeof l->inbox + 16];
    int64_t now = clock_mono(&clock_system), until = now + l->plan->timeout_ms * MS_NS;
    bool answered = false;
    snprintf(subject, sizeof subject, "%s.%s", l->plan->api, what);
    pthread_mutex_lock(&l->lock);
    natsMsg_Destroy(l->reply);
    l->reply = NULL;
    l->replied = l->no_responders = false;
    l->request++;
    pthread_mutex_unlock(&l->lock);
    snprintf(reply, sizeof reply, "%s.q%u", l->inbox, l->request);
    while (!answered && now < until) {
        int64_t next = now + REPEAT_NS;
        natsStatus s = natsConnection_PublishRequest(l->nc, subject, reply, body.p, (int)body.n);
        if (s != NATS_OK)
            return nats_link_failed(l->plan, s, subject, err);
        if (wait_until(l, &l->replied, min_i64(next, until), &answered, err) != 0)
            return -1;
        now = clock_mono(&clock_system);
    }
    if (!answered)
        return unanswered(l, subject, err);
    if (l->no_responders)
        return err_set(err, ERR_UNAVAILABLE,
                       "%s: JetStream does not answer: it is disabled, or has no leader yet",
                       l->plan->url.label);

    struct str text = {natsMsg_GetData(l->reply), (size_t)natsMsg_GetDataLength(l->reply)};
    if (json_parse(text, ret, NULL, NULL) != 0)
        return err_set(err, ERR_UNAVAILABLE, "%s: the reply to %s is not JSON", l->plan->url.label,
                       subject);
    return 0;
}

/* Sends a request with this body, and releases the body. */
static int send_body(struct nats_link *l, const char *what, struct buf *body, struct json *ret,
                     struct error *err)
{
    int rc;
    if (body->failed)
        rc = err_nomem(err);
    else
        rc = send_request(l, what, (struct str){body->p, body->n}, ret, err);
    buf_release(body);
    return rc;
}

static int refused(struct nats_link *l, const char *what, int code, const char *said,
                   struct error *err)
{
    enum retry_class class = CLASS_DOWN;
    if (nats_answer_meaning(code, said)->status == SINK_REFUSED)
        class = CLASS_RETRY;
    return err_class(err, ERR_UNAVAILABLE, class, code, "%s: stream %s: %s: %s (%d)",
                     l->plan->url.label, l->plan->set.stream, what, said, code);
}

/* Creates the stream. *ret is the reply, which describes the stream as STREAM.INFO does. */
static int create_stream(struct nats_link *l, struct json *ret, struct error *err)
{
    char what[300], said[200];
    struct buf body;
    int code;
    buf_init(&body, 16384);
    nats_stream_request(&body, &l->plan->set);
    snprintf(what, sizeof what, "STREAM.CREATE.%s", l->plan->set.stream);
    if (send_body(l, what, &body, ret, err) != 0)
        return -1;
    if (nats_reply_error(*ret, &code, said, sizeof said))
        return refused(l, "could not be created", code, said, err);
    return 0;
}

static int read_stream(struct nats_link *l, struct error *err)
{
    char what[300], said[200];
    struct json o;
    int code;
    snprintf(what, sizeof what, "STREAM.INFO.%s", l->plan->set.stream);
    if (send_request(l, what, (struct str){0}, &o, err) != 0)
        return -1;
    if (nats_reply_error(o, &code, said, sizeof said)) {
        if (code != NO_STREAM)
            return refused(l, "could not be queried", code, said, err);
        if (!l->plan->set.create)
            return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, NO_STREAM,
                             "%s has no stream %s; create one for %s, or set create=on",
                             l->plan->url.label, l->plan->set.stream, l->plan->set.subject);
        if (create_stream(l, &o, err) != 0)
            return -1;
    }
    if (nats_stream_read(o.raw, &l->plan->set, &l->stream, err) != 0)
        return err_prefix(err, "%s: stream %s", l->plan->url.label, l->plan->set.stream);
    return 0;
}

/* The tail */

/* Creates a consumer that sends us the stream's last messages. *ret_name is its name; "" if the
 * stream has no messages in that range. */
static int make_consumer(struct nats_link *l, uint64_t from, char ret_name[100], struct error *err)
{
    char what[300], said[200];
    struct buf body;
    struct json o, name;
    int code;
    buf_init(&body, 4096);
    buf_adds(&body, "{\"stream_name\":");
    json_quote(&body, str_of(l->plan->set.stream));
    buf_adds(&body, ",\"config\":{\"deliver_policy\":\"by_start_sequence\",\"opt_start_seq\":");
    buf_addi64(&body, (int64_t)from);
    buf_adds(&body, ",\"ack_policy\":\"none\",\"max_deliver\":1,\"replay_policy\":\"instant\","
                    "\"headers_only\":true,\"mem_storage\":true,\"num_replicas\":1,"
                    "\"inactive_threshold\":5000000000,\"deliver_subject\":");
    buf_addf(&body, "\"%s-t\"}}", l->inbox);
    snprintf(what, sizeof what, "CONSUMER.CREATE.%s", l->plan->set.stream);
    if (send_body(l, what, &body, &o, err) != 0)
        return -1;
    if (nats_reply_error(o, &code, said, sizeof said))
        return refused(l, "the last messages cannot be read", code, said, err);

    ret_name[0] = '\0';
    struct json v;
    int64_t n;
    bool nothing = json_get(o, STR("num_pending"), &v) && json_int(v, &n) && n == 0;
    bool named = json_get(o, STR("name"), &name) && name.type == JSON_STRING && name.raw.n < 100;
    if (named && !nothing) /* the messages may have been deleted since STREAM.INFO */
        snprintf(ret_name, 100, "%.*s", (int)name.raw.n - 2, name.raw.p + 1);
    return 0;
}

/* Reads the headers of the last messages through a temporary consumer. Its subject is outside
 * INBOX.*, because the server delivers only if a subscription for exactly this subject exists. */
static int read_tail(struct nats_link *l, uint64_t from, struct error *err)
{
    char subject[sizeof l->inbox + 4], name[100], what[600];
    natsSubscription *sub = NULL;
    snprintf(subject, sizeof subject, "%s-t", l->inbox);
    int rc = subscribe(l, subject, on_tail, &sub, err);
    if (rc == 0)
        rc = make_consumer(l, from, name, err);
    if (rc == 0 && name[0]) {
        int64_t until = clock_mono(&clock_system) + l->plan->timeout_ms * MS_NS;
        bool done = false;
        rc = wait_until(l, &l->tail_done, until, &done, err);
        if (rc == 0 && !done)
            rc = unanswered(l, "with the last messages of the stream", err);
        /* If this request is lost, the consumer expires after 5 s. */
        snprintf(what, sizeof what, "%s.CONSUMER.DELETE.%s.%s", l->plan->api, l->plan->set.stream,
                 name);
        (void)natsConnection_Publish(l->nc, what, NULL, 0);
    }
    natsSubscription_Destroy(sub);
    return rc;
}

static void set_tail(struct nats_link *l, struct nats_tail *tail)
{
    pthread_mutex_lock(&l->lock);
    l->tail = tail;
    l->tail_done = false;
    pthread_mutex_unlock(&l->lock);
}

/* Reads the ids of the stream's last messages: a relay that vanished, or a connection that was
 * lost, may have stored events without a confirmation. Without permission to read them, events may
 * be repeated; an exclusive stream requires this permission. */
static int look_back(struct nats_link *l, struct error *err)
{
    const struct nats_stream *st = &l->stream;
    uint64_t last = st->last_seq, want = (uint64_t)l->plan->set.lookback;
    bool empty = last == 0 || last < st->first_seq;
    if (empty || want == 0)
        return 0;
    uint64_t from = last > want ? last - want + 1 : 1;
    if (from < st->first_seq)
        from = st->first_seq;

    if (nats_tail_init(&l->stream.tail, last - from + 1) != 0)
        return err_nomem(err);
    set_tail(l, &l->stream.tail);
    int rc = read_tail(l, from, err);
    set_tail(l, NULL);
    if (rc == 0 || l->plan->set.exclusive || natsConnection_IsClosed(l->nc))
        return rc;
    snprintf(l->stream.tail_error, sizeof l->stream.tail_error, "%s", err->text);
    return 0;
}

int nats_prepare(struct nats_link *l, struct error *err)
{
    if (subscribe_inbox(l, err) != 0)
        return -1;
    if (read_stream(l, err) != 0)
        return -1;
    if (look_back(l, err) != 0)
        return -1;
    pthread_mutex_lock(&l->lock);
    l->max_payload = natsConnection_GetMaxPayload(l->nc);
    natsMsg_Destroy(l->reply);
    l->reply = NULL;
    pthread_mutex_unlock(&l->lock);
    return 0;
}
