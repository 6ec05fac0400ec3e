/* kafka.c: the sink that writes to Kafka topics: an idempotent producer that never leaves a gap,
 * thousands of messages in flight, one delivery report per event.
 *
 * The library's own threads do the work, and nothing here waits for them: reports are consumed
 * when its descriptor is readable, and every delivery has its own time limit. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"
#include "sink/kafka_impl.h"
#include "sink/kinds.h"

#define TEXT_MAX ((size_t)1 << 30)       /* limit on one message */
#define ENOUGH_BYTES ((size_t)8 << 20)   /* back-pressure until some of it is confirmed */
#define NAME_MAX_BYTES ((size_t)4 << 10) /* for a topic's name, before the length check */
#define AWAY_NS (1000 * MS_NS) /* how long all brokers may be unreachable before the sink is down */

#define SCRAM_MENDED 0x020601ff /* the version of the library that fixed it */
#define PROBE_SLICE_MS 200
#define CLOSING_NS (50 * MS_NS) /* between checks whether retired producers are gone */

/* With dedupe=on, looking up an event that may already be in the topic: one that is retried because
 * its relay vanished or its result is unknown. */

static int begin_lookup(struct kafka_sink *k, struct kafka_item *it, struct error *err)
{
    if (k->tail_fd < 0)
        k->tail_fd = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (k->tail_fd < 0)
        return err_set(err, ERR_UNAVAILABLE, "kafka sink: out of file descriptors");
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
    it->lookup = kafka_tail_ask(k->tail, it->f.d->ev->created_at);
    return 0;
}

/* Handles the results of finished lookups. */
static void end_lookups(struct kafka_sink *k)
{
    uint64_t wakes;
    if (!k->tail)
        return;
    (void)!read(k->tail_fd, &wakes, sizeof wakes);
    for (struct in_flight *f = k->window.first; f; f = f->next) {
        struct kafka_item *it = (struct kafka_item *)f;
        struct kafka_place at;
        if (it->state != ITEM_LOOKUP || !kafka_tail_ready(k->tail, it->lookup))
            continue;
        it->doubtful = false;
        it->state = ITEM_WAITING;
        if (kafka_tail_find(k->tail, f->d->ev->id, &at)) {
            it->state = ITEM_STORED;
            it->partition = at.partition;
            it->offset = at.offset;
        }
    }
    if (!kafka_tail_partial(k->tail) || k->told_partial)
        return;
    k->told_partial = true;
    broker_set_caution(&k->b,
                       "topic %s has too many new messages to search all of them for an event: "
                       "one already written by a vanished relay may be repeated",
                       k->topic);
}

/* Sending */

/* Creates a producer if there is none. While too many retired ones are still closing, there is
 * none, and deliveries wait. */
static int connect_if_need_be(struct kafka_sink *k, struct error *err)
{
    if (k->p || !kafka_producer_room(k))
        return 0;
    return kafka_producer_new(k, &k->p, err);
}

/* Hands one event to the producer. Returns whether to continue with the next. */
static bool hand_over(struct kafka_sink *k, struct kafka_item *it)
{
    struct error err;
    if (kafka_message_produce(k, it, &err) == 0) {
        it->state = ITEM_SENT;
        k->out++;
        return true;
    }
    rd_kafka_resp_err_t code = (rd_kafka_resp_err_t)err.native;
    if (err.code == ERR_NOMEM)
        code = RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE;
    bool full = code == RD_KAFKA_RESP_ERR__QUEUE_FULL;
    if (full && k->out > 0)
        return false; /* retried when reports have made room */
    bool unfit = err.code == ERR_INVALID || code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    if (unfit) {
        kafka_answer_unfit(k, it, err.text);
        return true;
    }
    kafka_answer_back(k, it, code);
    return !k->breaking;
}

/* Hands over waiting events: one at a time while looking for the faulty one. */
static void send_waiting(struct kafka_sink *k)
{
    struct error err;
    while (k->waiting && !k->breaking) {
        struct kafka_item *it = k->waiting;
        bool singly = kafka_singly(k);
        if (singly && k->out > 0)
            return;
        if (k->p && k->p->single && !singly) {
            if (k->out > 0)
                return;
            kafka_producer_retire(k); /* the faulty event is found: resume batching */
        }
        if (it->state == ITEM_LOOKUP)
            return;
        if (it->state != ITEM_WAITING) {
            k->waiting = kafka_next(it);
            continue;
        }
        if (k->set.dedupe && it->doubtful) {
            if (begin_lookup(k, it, &err) != 0)
                kafka_answer_down(k, SINK_DOWN, err.text);
            return; /* nothing may overtake it */
        }
        if (connect_if_need_be(k, &err) != 0) {
            enum sink_status status = err.code == ERR_CONFIG ? SINK_FATAL : SINK_DOWN;
            kafka_answer_down(k, status, err.text);
            return;
        }
        if (!k->p || !hand_over(k, it))
            return;
        k->waiting = kafka_next(it);
    }
}

static bool has_room(const struct kafka_sink *k)
{
    if (k->window.count == 0)
        return true;
    if (k->breaking || kafka_singly(k))
        return false;
    return k->window.count < KAFKA_WINDOW - 2 && k->window.bytes < ENOUGH_BYTES;
}

/* Adds a delivery to the window; `before` is the one that it is chained to, NULL: none. NULL with
 * ERR_NOMEM. */
static struct kafka_item *take_event(struct kafka_sink *k, struct delivery *d, const char *topic,
                                     const struct kafka_item *before, struct error *err)
{
    char *own = NULL;
    if (!k->fixed) {
        own = strdup(topic);
        if (!own) {
            err_nomem(err);
            return NULL;
        }
    }
    struct kafka_item *it = (struct kafka_item *)window_add(&k->window, d, NULL);
    *it = (struct kafka_item){
        .f = it->f,
        .number = k->taken,
        .chain = before ? before->chain : k->taken,
        .offset = -1,
        .doubtful = k->set.dedupe && d->again,
        .topic = own,
    };
    k->taken++;
    if (!k->waiting)
        k->waiting = it;
    return it;
}

static size_t kafka_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    struct kafka_item *last = NULL; /* the delivery before; NULL: it was not taken */
    size_t i = 0;
    for (; i < n && has_room(k); i++) {
        struct error err = {0};
        const char *topic = kafka_message_topic(k, d[i]->ev, &err);
        /* A chained event must go to the same partition as the one before it, which keeps their
         * order. If it does not, its chain ends before it, and it is offered again on its own. */
        bool same = topic && last && (k->fixed || strcmp(last->topic, topic) == 0);
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

/* Returns when the oldest undecided delivery was accepted; CLOCK_NEVER: there is none. */
static int64_t oldest_since(const struct kafka_sink *k)
{
    for (const struct in_flight *f = k->window.first; f; f = f->next)
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

/* Returns when brokers have been unreachable for too long. If the connection was lost because a
 * request timed out, that may have been one of the library's own, sent before the oldest delivery
 * was accepted: the broker counts as silent only once that delivery has waited for as long. */
static int64_t away_at(const struct kafka_sink *k)
{
    int64_t since = oldest_since(k);
    if (since == CLOCK_NEVER || !k->away_since)
        return CLOCK_NEVER;
    if (strcasestr(k->trouble, "timed out"))
        since += kafka_producer_patience_ms(k) * MS_NS;
    return max_i64(k->away_since, since) + AWAY_NS;
}

/* Explains why a login is refused although the password is correct. */
static const char *scram_hint(const struct kafka_sink *k)
{
    bool tls = strcmp(k->url.scheme, "kafka+ssl") == 0;
    bool plain = k->set.sasl == KAFKA_SASL_PLAIN || (k->set.sasl == KAFKA_SASL_DEFAULT && tls);
    bool scram = k->url.user && !plain;
    bool refused = strstr(k->trouble, "invalid credentials") != NULL;
    if (!scram || !refused || rd_kafka_version() >= SCRAM_MENDED)
        return "";
    return " (this librdkafka cannot log in to Kafka 4 with SCRAM: see docs/brokers.md)";
}

/* Ends everything once one of its two limits has expired. The reason is the limit that expired
 * first, not the one noticed first: on a busy machine both may have expired before we check. */
static void check_time(struct kafka_sink *k)
{
    char text[2 * KAFKA_TEXT + 300];
    int64_t away = away_at(k), late = late_at(k);
    if (broker_now(&k->b) < min_i64(away, late))
        return;
    bool has_trouble = k->trouble[0] != '\0';
    if (away < late)
        snprintf(text, sizeof text, "%s: %s%s", k->url.label,
                 has_trouble ? k->trouble : "no broker can be reached", scram_hint(k));
    else
        snprintf(text, sizeof text, "%s has not confirmed for %lld ms; %zu events were waiting%s%s",
                 k->url.label, (long long)k->b.base.cfg.timeout_ms, k->window.count,
                 has_trouble ? ": " : "", k->trouble);
    kafka_answer_down(k, SINK_DOWN, text);
}

static void kafka_drive(struct sink *sk)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    kafka_answer_hear(k);
    end_lookups(k);
    kafka_answer_broken(k);
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
    bool waits_for_room = !k->p && !k->tail && k->window.count > 0;
    if (waits_for_room)
        due = min_i64(due, broker_now(&k->b) + CLOSING_NS);
    return due;
}

/* Checks for reports once more: an event known to be stored need not be retried. */
static void kafka_cancel(struct sink *sk)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    kafka_answer_hear(k);
    kafka_answer_known(k);
    if (k->window.count > 0)
        kafka_answer_down(k, SINK_CANCELLED, "cancelled");
}

/* Whether the result of the topic check, which started with the first event, is still to be
 * reported. */
static bool kafka_attended(struct sink *sk)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    return k->p && k->p->checking && !k->told_facts;
}

/* Lists the brokers of the URL, from which the library discovers the others. */
static void kafka_broker(struct sink *sk, struct sink_broker *ret)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    ret->kind = "kafka";
    ret->connected = k->p && k->answered && !k->away_since;
    for (size_t i = 0; i < k->url.n_hosts; i++)
        sink_peer_add(ret->broker, k->url.hosts[i].host, k->url.hosts[i].port);
    kafka_topic_list_leaders(&k->leaders, ret->leader);
    window_describe(&k->window, ret);
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
    template_free(k->name);
    buf_release(&k->topic_name);
    buf_release(&k->text);
    kafka_settings_release(&k->set);
    broker_url_release(&k->url);
    window_release(&k->window);
    broker_close(sk);
}

/* Compiles the template of the topic's name, and checks it as far as possible. */
static int set_topic(struct kafka_sink *k, struct error *err)
{
    const char *text = kafka_settings_topic(&k->set, &k->url);
    if (template_new(text, &k->name, err) != 0)
        return err_prefix(err, "kafka sink: topic");
    k->fixed = template_fixed(k->name);
    if (!k->fixed && k->set.dedupe)
        return err_set(err, ERR_CONFIG,
                       "kafka sink: dedupe looks into one topic; the name of this one has fields");
    if (!k->fixed)
        return 0;
    if (!kafka_message_topic(k, &(struct event){0}, err)) {
        err->code = ERR_CONFIG;
        return err_prefix(err, "kafka sink: topic");
    }
    if (strcmp(k->topic, text) != 0)
        return err_set(err, ERR_CONFIG,
                       "kafka sink: a topic is made of letters, digits, '.', '_' and '-'");
    return 0;
}

static int kafka_set_up(struct sink *sk, struct error *err)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    k->tail_fd = -1;
    buf_init(&k->topic_name, NAME_MAX_BYTES);
    buf_init(&k->text, TEXT_MAX);
    kafka_topic_leaders_init(&k->leaders);
    if (kafka_settings_read(sk->cfg.url, &k->set, &k->url, err) != 0)
        return -1;
    const char *const files[] = {k->url.password_file, k->url.ca, k->url.cert, k->url.key};
    if (broker_check_files("kafka", files, sizeof files / sizeof files[0], err) != 0)
        return -1;
    if (set_topic(k, err) != 0)
        return -1;
    k->style = (struct message_style){
        .format = k->set.format, .source = str_of(k->set.source), .ce_prefix = "ce_"};
    /* With several topics, one that accepts nothing must not block the others, so the sink is not
     * fail-stop as a whole, only within a key. */
    sk->caps = k->fixed ? SINK_FAILSTOP : SINK_CHAINS;
    return window_init(&k->window, sk, KAFKA_WINDOW, sizeof(struct kafka_item), err);
}

static int kafka_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    return broker_open(cfg, sizeof(struct kafka_sink), kafka_set_up, ret, err);
}

/* Queries the topic until there is a reply, the time is over, or no broker can be reached. */
static rd_kafka_resp_err_t ask_topic(struct kafka_sink *k, int64_t timeout_ms)
{
    const rd_kafka_metadata_t *md;
    int64_t until = broker_now(&k->b) + timeout_ms * MS_NS;
    rd_kafka_resp_err_t code;
    do {
        code = rd_kafka_metadata(k->p->rk, 0, k->p->topic, &md, PROBE_SLICE_MS);
        kafka_answer_hear(k);
        bool away = k->away_since && broker_now(&k->b) >= k->away_since + AWAY_NS / 2;
        if (away)
            break;
    } while (code != RD_KAFKA_RESP_ERR_NO_ERROR && broker_now(&k->b) < until);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return code;
    k->answered = true;
    if (k->fixed && md->topic_cnt > 0) {
        code = md->topics[0].err;
        kafka_topic_read_leaders(&k->leaders, md);
    }
    rd_kafka_metadata_destroy(md);
    return code;
}

static int kafka_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    char said[KAFKA_TEXT];
    if (connect_if_need_be(k, err) != 0)
        return -1;
    if (!k->p)
        return err_set(err, ERR_BUSY, "%s: former connections are being closed", k->url.label);

    rd_kafka_resp_err_t code = ask_topic(k, timeout_ms);
    bool made_later = code == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART && k->set.create;
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || made_later)
        return 0;
    kafka_answer_text(code, said);
    bool about_connection = k->trouble[0] != '\0' && kafka_answer_of(code)->meaning == KAFKA_AWAY;
    if (about_connection)
        return err_set(err, ERR_UNAVAILABLE, "%s: %s", k->url.label, k->trouble);
    return err_set(err, ERR_UNAVAILABLE, "%s, topic %s: %s", k->url.label, k->topic, said);
}

const struct sink_ops kafka_ops = {
    .scheme = "kafka",
    .synopsis = "kafka://HOST:PORT/TOPIC",
    .help = "write to Kafka; see docs/brokers.md",
    .attended = kafka_attended,
    BROKER_OPS(kafka),
};

const struct sink_ops kafka_tls_ops = {
    .scheme = "kafka+ssl",
    .synopsis = "kafka+ssl://HOST:PORT/TOPIC",
    .help = "the same with TLS",
    .attended = kafka_attended,
    BROKER_OPS(kafka),
};
