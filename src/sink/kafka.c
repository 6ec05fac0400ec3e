/* kafka.c: the sink that writes to Kafka topics: an idempotent producer that never leaves a gap,
 * thousands of messages in flight, one delivery report per event.
 *
 * The library's threads do the work, and the sink never waits for them: it consumes reports when
 * the producer's descriptor is readable, and every delivery has its own time limit. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"
#include "sink/kafka_impl.h"
#include "sink/kinds.h"

#define TEXT_MAX ((size_t)1 << 30)       /* limit on the size of a message */
#define ENOUGH_BYTES ((size_t)8 << 20)   /* in flight; above this, submit applies back-pressure */
#define NAME_MAX_BYTES ((size_t)4 << 10) /* for a topic's name, before its length is checked */
#define AWAY_NS (1000 * MS_NS) /* how long all brokers may be unreachable before the sink is down */

#define SCRAM_MENDED 0x020601ff /* the first version of the library with the fix */
#define PROBE_SLICE_MS 200
#define CLOSING_NS (50 * MS_NS) /* between checks for destroyed producers */

/* With dedupe=on, looks up an event that may already be in the topic: a retried event whose relay
 * vanished or whose result is unknown. */

static int begin_lookup(struct kafka_sink *k, struct kafka_item *it, struct error *err)
{
    if (k->tail_fd < 0)
        k->tail_fd = wake_fd_new();
    if (k->tail_fd < 0)
        return err_set(err, ERR_UNAVAILABLE, "kafka sink: no file descriptors left");
    if (!k->tail) {
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        if (kafka_producer_conf(k, conf, err) != 0) {
            rd_kafka_conf_destroy(conf);
            return -1;
        }
        if (kafka_tail_new(conf, k->topic, k->b.base.cfg.consumer, k->tail_fd, &k->tail, err) != 0)
            return -1;
    }
    it->state = ITEM_LOOKUP;
    it->lookup = kafka_tail_request(k->tail, it->f.d->ev->created_at);
    return 0;
}

/* Handles the results of finished lookups. */
static void end_lookups(struct kafka_sink *k)
{
    if (!k->tail)
        return;
    wake_fd_clear(k->tail_fd);
    for (struct in_flight *f = k->b.window.first; f; f = f->next) {
        struct kafka_item *it = (struct kafka_item *)f;
        struct kafka_place at;
        if (it->state != ITEM_LOOKUP || !kafka_tail_ready(k->tail, it->lookup))
            continue;
        it->may_be_stored = false;
        it->state = ITEM_WAITING;
        if (kafka_tail_find(k->tail, f->d->ev->id, &at)) {
            it->state = ITEM_STORED;
            it->partition = at.partition;
            it->offset = at.offset;
        }
    }
    if (!kafka_tail_partial(k->tail) || k->partial_reported)
        return;
    k->partial_reported = true;
    broker_set_caution(&k->b,
                       "topic %s has too many new messages to search them all for an event: an "
                       "event already written by a vanished relay may be repeated",
                       k->topic);
}

/* Messages */

/* Copies a name, and replaces bytes that Kafka forbids in a topic with _XX. Returns false if the
 * result is too long. */
static bool escape_name(struct str from, char to[KAFKA_TOPIC_MAX + 1])
{
    size_t n = 0;
    for (size_t i = 0; i < from.n; i++) {
        char c = from.p[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool digit = c >= '0' && c <= '9';
        bool legal = letter || digit || c == '.' || c == '_' || c == '-';
        size_t takes = legal ? 1 : 3;
        if (n + takes > KAFKA_TOPIC_MAX)
            return false;
        if (legal)
            to[n] = c;
        else
            snprintf(to + n, 4, "_%02X", (unsigned char)c);
        n += takes;
    }
    to[n] = '\0';
    return true;
}

const char *kafka_topic_name(struct kafka_sink *k, const struct event *ev, struct error *err)
{
    if (k->b.fixed && k->topic[0] != '\0')
        return k->topic;
    struct str name = broker_name(&k->b, ev, err);
    if (!name.p)
        return NULL;
    bool fits = escape_name(name, k->topic);
    bool reserved = fits && (strcmp(k->topic, ".") == 0 || strcmp(k->topic, "..") == 0);
    if (fits && !reserved)
        return k->topic;
    if (reserved)
        err_set(err, ERR_INVALID, "the event's topic would be called %s", k->topic);
    else
        err_set(err, ERR_INVALID, "the name of the event's topic would exceed %d characters",
                KAFKA_TOPIC_MAX);
    k->topic[0] = '\0';
    return NULL;
}

/* Copies the headers of a message; NULL if out of memory. The caller passes them to the
 * producer. */
static rd_kafka_headers_t *make_headers(const struct kafka_sink *k, const struct message *m,
                                        struct str id)
{
    rd_kafka_headers_t *all = rd_kafka_headers_new(m->n + 2);
    if (!all)
        return NULL;
    for (size_t i = 0; i < m->n; i++) {
        const struct message_header *h = &m->headers[i];
        rd_kafka_header_add(all, h->name.p, (ssize_t)h->name.n, h->value.p, (ssize_t)h->value.n);
    }
    if (m->content_type.p)
        rd_kafka_header_add(all, "content-type", -1, m->content_type.p, (ssize_t)m->content_type.n);
    if (k->set.dedupe) { /* kafka_tail.c finds the event again by this header */
        char name[512];
        int n = snprintf(name, sizeof name, "%s/%.*s", k->b.base.cfg.consumer, (int)id.n, id.p);
        rd_kafka_header_add(all, KAFKA_TAIL_HEADER, -1, name, n);
    }
    return all;
}

/* The library copies key and value, because the event may be freed before the producer. A message
 * without a key has a null key: an empty key would put all such messages into one partition. */
static int produce_message(struct kafka_sink *k, struct kafka_item *it, struct error *err)
{
    struct message m;
    const struct delivery *d = it->f.d;
    const char *topic = it->topic ? it->topic : k->topic;
    if (broker_message(&k->b, d, str_of(topic), &m, err) != 0)
        return -1;
    rd_kafka_headers_t *headers = make_headers(k, &m, d->ev->id);
    if (!headers)
        return err_nomem(err);

    rd_kafka_vu_t v[6] = {
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = it},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_VALUE,
         .u.mem = {.ptr = (void *)(uintptr_t)m.value.p, .size = m.value.n}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = k->p->topic},
        {.vtype = RD_KAFKA_VTYPE_KEY,
         .u.mem = {.ptr = (void *)(uintptr_t)m.key.p, .size = m.key.n}},
    };
    if (it->topic)
        v[4] = (rd_kafka_vu_t){.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = it->topic};
    rd_kafka_error_t *error = rd_kafka_produceva(k->p->rk, v, m.key.p ? 6 : 5);
    if (!error)
        return 0;
    rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    rd_kafka_error_destroy(error);
    rd_kafka_headers_destroy(headers);
    char text[KAFKA_TEXT];
    kafka_answer_text(code, text);
    return err_class(err, ERR_UNAVAILABLE, CLASS_NONE, code, "%s", text);
}

/* Sending */

/* Creates a producer if necessary. While too many retired producers are still closing, deliveries
 * wait. */
static int ensure_producer(struct kafka_sink *k, struct error *err)
{
    if (k->p || !kafka_producer_can_retire(k))
        return 0;
    return kafka_producer_new(k, &k->p, err);
}

/* Passes one event to the producer. Returns whether to continue with the next event. */
static bool hand_over(struct kafka_sink *k, struct kafka_item *it)
{
    struct error err;
    if (produce_message(k, it, &err) == 0) {
        it->state = ITEM_SENT;
        k->n_sent++;
        return true;
    }
    rd_kafka_resp_err_t code = (rd_kafka_resp_err_t)err.native;
    if (err.code == ERR_NOMEM)
        code = RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE;
    bool full = code == RD_KAFKA_RESP_ERR__QUEUE_FULL;
    if (full && k->n_sent > 0)
        return false; /* the queue is full: retry after the next reports */
    bool unfit = err.code == ERR_INVALID || code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    if (unfit) {
        kafka_answer_reject(k, it, err.text);
        return true;
    }
    kafka_answer_failed(k, it, code);
    return !k->breaking;
}

/* Passes waiting events to the producer, one at a time during the search for a faulty event. */
static void send_waiting(struct kafka_sink *k)
{
    struct error err;
    while (k->waiting && !k->breaking) {
        struct kafka_item *it = k->waiting;
        bool singly = kafka_one_by_one(k);
        if (singly && k->n_sent > 0)
            return;
        if (k->p && k->p->one_by_one && !singly) {
            if (k->n_sent > 0)
                return;
            kafka_producer_retire(k); /* the faulty event was found: batch again */
        }
        if (it->state == ITEM_LOOKUP)
            return;
        if (it->state != ITEM_WAITING) {
            k->waiting = kafka_next(it);
            continue;
        }
        if (k->set.dedupe && it->may_be_stored) {
            if (begin_lookup(k, it, &err) != 0)
                kafka_answer_all(k, SINK_DOWN, err.text);
            return; /* no event may overtake it */
        }
        if (ensure_producer(k, &err) != 0) {
            enum sink_status status = err.code == ERR_CONFIG ? SINK_FATAL : SINK_DOWN;
            kafka_answer_all(k, status, err.text);
            return;
        }
        if (!k->p || !hand_over(k, it))
            return;
        k->waiting = kafka_next(it);
    }
}

static bool has_room(const struct kafka_sink *k)
{
    if (k->b.window.count == 0)
        return true;
    if (k->breaking || kafka_one_by_one(k))
        return false;
    return k->b.window.count < KAFKA_WINDOW - 2 && k->b.window.bytes < ENOUGH_BYTES;
}

/* Adds a delivery to the window. `before` is its predecessor in a chain; NULL if none. Returns NULL
 * with ERR_NOMEM on failure. */
static struct kafka_item *take_event(struct kafka_sink *k, struct delivery *d, const char *topic,
                                     const struct kafka_item *before, struct error *err)
{
    char *own = NULL;
    if (!k->b.fixed) {
        own = strdup(topic);
        if (!own) {
            err_nomem(err);
            return NULL;
        }
    }
    struct kafka_item *it = (struct kafka_item *)window_add(&k->b.window, d, NULL);
    *it = (struct kafka_item){
        .f = it->f,
        .number = k->next_number,
        .chain = before ? before->chain : k->next_number,
        .offset = -1,
        .may_be_stored = k->set.dedupe && d->again,
        .topic = own,
    };
    k->next_number++;
    if (!k->waiting)
        k->waiting = it;
    return it;
}

static size_t kafka_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    struct kafka_item *last = NULL; /* the previous delivery; NULL if it was not accepted */
    size_t i = 0;
    for (; i < n && has_room(k); i++) {
        struct error err = {0};
        const char *topic = kafka_topic_name(k, d[i]->ev, &err);
        /* A chained event must have the same topic and partition as its predecessor, so that their
         * order is kept. Otherwise the chain ends before it, and the engine offers it again as
         * the start of another chain. */
        bool same = topic && last && (k->b.fixed || strcmp(last->topic, topic) == 0);
        bool behind = d[i]->chained && i > 0;
        if (behind && !same)
            break;
        const struct kafka_item *before = behind ? last : NULL;
        last = topic ? take_event(k, d[i], topic, before, &err) : NULL;
        if (!last && !broker_unsent(&k->b, d[i], &err)) {
            i++;
            break;
        }
    }
    send_waiting(k);
    kafka_answer_known(k);
    return i;
}

/* Time */

/* Returns when the oldest undecided delivery was accepted; CLOCK_NEVER if none is undecided. */
static int64_t oldest_since(const struct kafka_sink *k)
{
    for (const struct in_flight *f = k->b.window.first; f; f = f->next)
        if (((const struct kafka_item *)f)->state <= ITEM_SENT)
            return f->since;
    return CLOCK_NEVER;
}

/* Returns when the oldest delivery exceeds its time limit. */
static int64_t late_at(const struct kafka_sink *k)
{
    int64_t since = oldest_since(k), limit = k->b.base.cfg.timeout_ms;
    if (since == CLOCK_NEVER || limit <= 0)
        return CLOCK_NEVER;
    return since + limit * MS_NS;
}

/* Returns when the brokers have been unreachable for too long. If the connection was lost because a
 * request timed out, that request may be one of the library's own, sent before the oldest delivery
 * was accepted. The broker therefore counts as silent only after this delivery has waited as
 * long. */
static int64_t away_at(const struct kafka_sink *k)
{
    int64_t since = oldest_since(k);
    if (since == CLOCK_NEVER || !k->unreachable_since)
        return CLOCK_NEVER;
    if (strcasestr(k->last_error, "timed out"))
        since += kafka_producer_patience_ms(k) * MS_NS;
    return max_i64(k->unreachable_since, since) + AWAY_NS;
}

/* Explains why a login fails although the password is correct. */
static const char *scram_hint(const struct kafka_sink *k)
{
    bool tls = strcmp(k->url.scheme, "kafka+ssl") == 0;
    bool plain = k->set.sasl == KAFKA_SASL_PLAIN || (k->set.sasl == KAFKA_SASL_DEFAULT && tls);
    bool scram = k->url.user && !plain;
    bool refused = strstr(k->last_error, "invalid credentials") != NULL;
    if (!scram || !refused || rd_kafka_version() >= SCRAM_MENDED)
        return "";
    return " (this librdkafka cannot log in to Kafka 4 with SCRAM: see docs/brokers.md)";
}

/* Ends all deliveries once one of the two time limits has expired. The reason is the limit that
 * expired first: on a busy machine both may have expired by now. */
static void check_time(struct kafka_sink *k)
{
    char text[2 * KAFKA_TEXT + 300];
    int64_t away = away_at(k), late = late_at(k);
    if (broker_now(&k->b) < min_i64(away, late))
        return;
    bool has_trouble = k->last_error[0] != '\0';
    if (away < late)
        snprintf(text, sizeof text, "%s: %s%s", k->url.label,
                 has_trouble ? k->last_error : "no broker is reachable", scram_hint(k));
    else
        snprintf(text, sizeof text, "%s has not confirmed for %lld ms; %zu events were waiting%s%s",
                 k->url.label, (long long)k->b.base.cfg.timeout_ms, k->b.window.count,
                 has_trouble ? ": " : "", k->last_error);
    kafka_answer_all(k, SINK_DOWN, text);
}

static void kafka_drive(struct sink *sk)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    kafka_answer_poll(k);
    end_lookups(k);
    kafka_answer_recover(k);
    send_waiting(k);
    kafka_answer_known(k);
    check_time(k);
}

static size_t kafka_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    size_t n = 0;
    if (k->p && n < max)
        out[n++] = (struct pollfd){.fd = k->p->fd, .events = POLLIN};
    if (k->tail && n < max)
        out[n++] = (struct pollfd){.fd = k->tail_fd, .events = POLLIN};
    return n;
}

static int64_t kafka_deadline(struct sink *sk)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    int64_t due = min_i64(late_at(k), away_at(k));
    if (k->breaking)
        due = min_i64(due, k->break_by);
    bool waits_for_room = !k->p && !k->tail && k->b.window.count > 0;
    if (waits_for_room)
        due = min_i64(due, broker_now(&k->b) + CLOSING_NS);
    return due;
}

/* Polls for reports once more: an event known to be stored need not be retried. */
static void kafka_cancel(struct sink *sk)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    kafka_answer_poll(k);
    kafka_answer_known(k);
    if (k->b.window.count > 0)
        kafka_answer_all(k, SINK_CANCELLED, "cancelled");
}

/* Returns whether the result of the topic check, which started with the first event, is still
 * pending. */
static bool kafka_attended(struct sink *sk)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    return k->p && k->p->checking && !k->facts_reported;
}

/* Lists the brokers of the URL, from which the library discovers the others. */
static void kafka_broker(struct sink *sk, struct sink_broker *ret)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    ret->kind = "kafka";
    ret->connected = k->p && k->answered && !k->unreachable_since;
    for (size_t i = 0; i < k->url.n_hosts; i++)
        sink_peer_add(ret->broker, k->url.hosts[i].host, k->url.hosts[i].port);
    kafka_producer_list_leaders(&k->leaders, ret->leader);
    window_describe(&k->b.window, ret);
}

/* Opening */

static void kafka_close(struct sink *sk)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    kafka_producer_retire(k);
    kafka_producer_join(k);
    kafka_tail_free(k->tail);
    if (k->tail_fd >= 0)
        close(k->tail_fd);
    kafka_settings_release(&k->set);
    url_release(&k->url);
    broker_close(sk);
}

/* Checks the topic's name as far as possible without an event. */
static int check_topic(struct kafka_sink *k, struct error *err)
{
    if (!k->b.fixed && k->set.dedupe)
        return err_set(err, ERR_CONFIG,
                       "kafka sink: dedupe requires a single topic, but this topic's name "
                       "contains fields");
    if (!k->b.fixed)
        return 0;
    if (!kafka_topic_name(k, &(struct event){0}, err)) {
        err->code = ERR_CONFIG;
        return err_prefix(err, "kafka sink: topic");
    }
    if (strcmp(k->topic, k->url.path) != 0)
        return err_set(err, ERR_CONFIG,
                       "kafka sink: a topic's name consists of letters, digits, '.', '_' and '-'");
    return 0;
}

static int kafka_set_up(struct sink *sk, struct error *err)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    k->tail_fd = -1;
    if (kafka_settings_read(sk->cfg.url, &k->set, &k->url, err) != 0)
        return -1;
    struct message_style style = {k->set.format, str_of(k->set.source), "ce_"};
    if (broker_route(&k->b, k->url.path, style, err) != 0)
        return -1;
    /* With several topics, a topic that accepts nothing must not block the others: the sink is
     * fail-stop only within a key. */
    sk->caps = k->b.fixed ? SINK_FAILSTOP : SINK_CHAINS;
    return check_topic(k, err);
}

static const struct broker_kind kafka_kind = {
    .name = "kafka",
    .destination = "topic",
    .size = sizeof(struct kafka_sink),
    .in_flight = KAFKA_WINDOW,
    .item_size = sizeof(struct kafka_item),
    .name_max = NAME_MAX_BYTES,
    .message_max = TEXT_MAX,
    .set_up = kafka_set_up,
};
BROKER_OPEN(kafka)

/* Queries the topic until a reply arrives, time runs out, or no broker is reachable. */
static rd_kafka_resp_err_t ask_topic(struct kafka_sink *k, int64_t timeout_ms)
{
    const rd_kafka_metadata_t *md;
    int64_t until = broker_now(&k->b) + timeout_ms * MS_NS;
    rd_kafka_resp_err_t code;
    do {
        code = rd_kafka_metadata(k->p->rk, 0, k->p->topic, &md, PROBE_SLICE_MS);
        kafka_answer_poll(k);
        bool away = k->unreachable_since && broker_now(&k->b) >= k->unreachable_since + AWAY_NS / 2;
        if (away)
            break;
    } while (code != RD_KAFKA_RESP_ERR_NO_ERROR && broker_now(&k->b) < until);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return code;
    k->answered = true;
    if (k->b.fixed && md->topic_cnt > 0) {
        code = md->topics[0].err;
        kafka_producer_read_leaders(&k->leaders, md);
    }
    rd_kafka_metadata_destroy(md);
    return code;
}

static int kafka_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    char said[KAFKA_TEXT];
    if (ensure_producer(k, err) != 0)
        return -1;
    if (!k->p)
        return err_set(err, ERR_BUSY, "%s: earlier connections are still closing", k->url.label);

    rd_kafka_resp_err_t code = ask_topic(k, timeout_ms);
    bool made_later = code == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART && k->set.create;
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || made_later)
        return 0;
    kafka_answer_text(code, said);
    bool about_connection = k->last_error[0] != '\0' &&
                            kafka_answer_of(code)->meaning == KAFKA_UNAVAILABLE;
    if (about_connection)
        return err_set(err, ERR_UNAVAILABLE, "%s: %s", k->url.label, k->last_error);
    return err_set(err, ERR_UNAVAILABLE, "%s, topic %s: %s", k->url.label, k->topic, said);
}

const struct sink_ops kafka_ops = {
    BROKER_OPS(kafka, "kafka", "kafka://HOST:PORT/TOPIC", "write to Kafka; see docs/brokers.md"),
    .attended = kafka_attended};
const struct sink_ops kafka_tls_ops = {
    BROKER_OPS(kafka, "kafka+ssl", "kafka+ssl://HOST:PORT/TOPIC", "the same with TLS"),
    .attended = kafka_attended};
