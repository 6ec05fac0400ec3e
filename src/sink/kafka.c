/* kafka.c: the sink that writes to topics of Kafka: an idempotent producer that never leaves a gap,
 * thousands in flight, reports matched one by one.
 *
 * The library's own threads do the work. Nothing here waits for them: reports are taken when its
 * descriptor says that there are any, and every delivery has a time limit of its own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sink/kafka_impl.h"
#include "sink/kinds.h"

#define TEXT_MAX ((size_t)1 << 30)       /* ceiling of one message */
#define ENOUGH_BYTES ((size_t)8 << 20)   /* take no more events until some of it is confirmed */
#define NAME_MAX_BYTES ((size_t)4 << 10) /* of a topic, before it is found to be too long */
#define AWAY_NS (1000 * MS_NS) /* how long no broker may be reachable before the sink is down */

#define SCRAM_MENDED 0x020601ff /* the version of the library */
#define PROBE_SLICE_MS 200
#define CLOSING_NS (50 * MS_NS) /* how often to look whether former producers are gone */

static bool is_open(const struct slot *s)
{
    bool with_us = s->state == SLOT_WAITING || s->state == SLOT_LOOKING;
    return with_us || s->state == SLOT_SENT;
}

/* ---- sending ---- */

/* connect_if_need_be makes a producer if there is none. While too many former ones are still being
 * closed there is none yet, and deliveries wait. */
static int connect_if_need_be(struct kafka_sink *k, struct error *err)
{
    if (k->p || !kafka_producer_room(k))
        return 0;
    return kafka_producer_new(k, &k->p, err);
}

/* hand_over hands one slot to the producer. Returns whether to go on with the next. */
static bool hand_over(struct kafka_sink *k, size_t i)
{
    struct slot *s = kafka_slot(k, i);
    struct error err;
    if (kafka_message_produce(k, i, &err) == 0) {
        s->state = SLOT_SENT;
        k->out++;
        return true;
    }
    rd_kafka_resp_err_t code = (rd_kafka_resp_err_t)err.native;
    bool full = code == RD_KAFKA_RESP_ERR__QUEUE_FULL;
    if (full && k->out > 0)
        return false; /* its turn comes when reports have made room */
    bool unfit = err.code == ERR_INVALID || code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    if (unfit) {
        kafka_report_unfit(k, i, err.text);
        return true;
    }
    kafka_report_back(k, s, code);
    return !k->breaking;
}

/* leave_singly replaces a producer that sends messages one by one, once the guilty one is found and
 * nothing is out. Returns whether to go on. */
static bool leave_singly(struct kafka_sink *k)
{
    bool over = k->p && k->p->single && !kafka_singly(k);
    if (!over)
        return true;
    if (k->out > 0)
        return false;
    kafka_producer_retire(k);
    return true;
}

/* pump hands over what waits: one at a time while a guilty one is being looked for. */
static void pump(struct kafka_sink *k)
{
    struct error err;
    while (k->sent < k->next && !k->breaking) {
        if (kafka_singly(k) && k->out > 0)
            return;
        if (!leave_singly(k))
            return;
        if (kafka_slot(k, k->sent)->state == SLOT_LOOKING)
            return;
        if (kafka_slot(k, k->sent)->state != SLOT_WAITING) {
            k->sent++;
            continue;
        }
        struct slot *s = kafka_slot(k, k->sent);
        if (kafka_look_needed(k, s)) {
            if (kafka_look_begin(k, s, &err) != 0)
                kafka_report_down(k, SINK_DOWN, err.text);
            return; /* nothing overtakes it meanwhile */
        }
        if (connect_if_need_be(k, &err) != 0) {
            enum sink_status status = err.code == ERR_CONFIG ? SINK_FATAL : SINK_DOWN;
            kafka_report_down(k, status, err.text);
            return;
        }
        if (!k->p || !hand_over(k, k->sent))
            return;
        k->sent++;
    }
}

/* same_topic says whether a chained event goes where the one before it went, so that the order
 * between them is the partition's. */
static bool same_topic(const struct kafka_sink *k, const char *topic)
{
    if (k->fixed)
        return true;
    if (k->next == k->first)
        return false;
    const struct slot *before = kafka_slot(k, k->next - 1);
    return before->topic && strcmp(before->topic, topic) == 0;
}

/* take puts a delivery into a slot. */
static int take(struct kafka_sink *k, struct delivery *d, const char *topic)
{
    struct slot *s = kafka_slot(k, k->next);
    *s = (struct slot){
        .d = d,
        .chained = d->chained,
        .since = kafka_now(k),
        .bytes = event_bytes(d->ev),
        .offset = -1,
        .doubtful = k->set.dedupe && d->again,
    };
    if (!k->fixed) {
        s->topic = strdup(topic);
        if (!s->topic)
            return -1;
    }
    k->bytes += s->bytes;
    k->next++;
    return 0;
}

static void reject(struct kafka_sink *k, struct delivery *d, const struct error *err)
{
    struct sink_result res = {.status = SINK_REJECT, .text = err->text, .unasked = true};
    if (err->code != ERR_INVALID)
        res = (struct sink_result){.status = SINK_DOWN, .text = err->text};
    sink_done(&k->base, d, &res);
}

static bool has_room(const struct kafka_sink *k)
{
    size_t busy = kafka_inflight(k);
    if (busy == 0)
        return true;
    if (k->breaking || kafka_singly(k))
        return false;
    return busy < KAFKA_WINDOW - 2 && k->bytes < ENOUGH_BYTES;
}

static size_t kafka_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    size_t i = 0;
    for (; i < n && has_room(k); i++) {
        struct error err = {0};
        const char *topic = kafka_message_topic(k, d[i]->ev, &err);
        bool behind = d[i]->chained && i > 0;
        if (topic && behind && !same_topic(k, topic))
            break;
        if (!topic && behind)
            break; /* its chain ends before it; it is offered again, alone */
        if (!topic) {
            reject(k, d[i], &err);
        } else if (take(k, d[i], topic) != 0) {
            err_nomem(&err);
            reject(k, d[i], &err);
        }
    }
    pump(k);
    kafka_report_answer(k);
    return i;
}

/* ---- time ---- */

/* oldest returns the oldest delivery that is not decided; NULL: there is none. */
static const struct slot *oldest(const struct kafka_sink *k)
{
    for (size_t i = k->first; i < k->next; i++) {
        const struct slot *s = kafka_slot(k, i);
        if (s->d && is_open(s))
            return s;
    }
    return NULL;
}

/* late_at returns when the oldest delivery will have waited for too long. */
static int64_t late_at(const struct kafka_sink *k)
{
    const struct slot *s = oldest(k);
    int64_t limit = k->base.cfg.timeout_ms;
    if (!s || limit <= 0)
        return CLOCK_NEVER;
    return s->since + limit * MS_NS;
}

/* away_at returns when brokers have been out of reach for long enough. */
static int64_t away_at(const struct kafka_sink *k)
{
    const struct slot *s = oldest(k);
    if (!s || !k->away_since)
        return CLOCK_NEVER;
    int64_t since = k->away_since > s->since ? k->away_since : s->since;
    return since + AWAY_NS;
}

/* scram_hint explains a login that is refused though the password is right. */
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

static void check_time(struct kafka_sink *k)
{
    char text[2 * KAFKA_TEXT + 300];
    int64_t now = kafka_now(k);
    const char *trouble = k->trouble[0] != '\0' ? k->trouble : "no broker can be reached";
    if (now >= away_at(k))
        snprintf(text, sizeof text, "%s: %s%s", k->url.label, trouble, scram_hint(k));
    else if (now >= late_at(k))
        snprintf(text, sizeof text, "%s has not confirmed for %lld ms; %zu events were waiting%s%s",
                 k->url.label, (long long)k->base.cfg.timeout_ms, kafka_inflight(k),
                 k->trouble[0] != '\0' ? ": " : "", k->trouble);
    else
        return;
    kafka_report_down(k, SINK_DOWN, text);
}

static void kafka_drive(struct sink *sk)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    kafka_report_hear(k);
    kafka_look_end(k);
    kafka_report_settle(k);
    pump(k);
    kafka_report_answer(k);
    if (kafka_inflight(k) > 0)
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

/* closed_at returns when to look whether former producers are gone, for whose end the next one
 * waits; CLOCK_NEVER: nothing waits for that. */
static int64_t closed_at(const struct kafka_sink *k)
{
    bool waits = !k->p && !k->tail && kafka_inflight(k) > 0;
    if (!waits)
        return CLOCK_NEVER;
    return kafka_now(k) + CLOSING_NS;
}

/* broken_at returns when a producer that broke is replaced, whatever it still has. */
static int64_t broken_at(const struct kafka_sink *k)
{
    if (!k->breaking)
        return CLOCK_NEVER;
    return k->break_by;
}

static int64_t kafka_deadline(struct sink *sk)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    const int64_t each[] = {late_at(k), away_at(k), broken_at(k), closed_at(k)};
    int64_t first = CLOCK_NEVER;
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++)
        if (each[i] < first)
            first = each[i];
    return first;
}

/* kafka_cancel looks for reports once more: an event that is known to be stored need not come
 * again. */
static void kafka_cancel(struct sink *sk)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    kafka_report_hear(k);
    kafka_report_answer(k);
    if (kafka_inflight(k) > 0)
        kafka_report_down(k, SINK_CANCELLED, "cancelled");
}

/* kafka_attended says whether the look at the topic, which began with the first event, has still to
 * be told. */
static bool kafka_attended(struct sink *sk)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    return k->p && k->p->checking && !k->told_facts;
}

static size_t kafka_marks(struct sink *sk, const struct hwm **ret)
{
    return streams_dirty(&((struct kafka_sink *)sk)->streams, ret);
}

static void kafka_marks_kept(struct sink *sk)
{
    streams_kept(&((struct kafka_sink *)sk)->streams);
}

static const char *kafka_caution(struct sink *sk)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    if (k->n_caution == 0)
        return NULL;
    const char *text = k->caution[(k->n_caution - 1) % 3];
    return text[0] != '\0' ? text : NULL;
}

/* ---- opening ---- */

static void kafka_close(struct sink *sk)
{
    struct kafka_sink *k = (struct kafka_sink *)sk;
    kafka_producer_retire(k);
    kafka_producer_join(k);
    kafka_tail_free(k->tail);
    if (k->tail_fd >= 0)
        close(k->tail_fd);
    streams_release(&k->streams);
    template_free(k->name);
    buf_release(&k->topic_name);
    buf_release(&k->text);
    kafka_settings_release(&k->set);
    broker_url_release(&k->url);
    free(k->slots);
    free(k);
}

/* check_files checks that the files which each producer will read are there: one that is missing at
 * the start is a mistake. */
static int check_files(const struct broker_url *u, struct error *err)
{
    const char *const files[] = {u->password_file, u->ca, u->cert, u->key};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (files[i] && access(files[i], R_OK) != 0)
            return err_errno(err, ERR_CONFIG, errno, "kafka sink: could not read %s", files[i]);
    }
    return 0;
}

static void set_style(struct kafka_sink *k)
{
    k->style = (struct message_style){.format = k->set.format, .ce_prefix = "ce_"};
    if (k->set.source)
        k->style.source = str_of(k->set.source);
}

/* set_topic compiles the template of the topic's name, and checks it as far as that is possible. */
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
    if (strlen(k->topic) != strlen(text) || strcmp(k->topic, text) != 0)
        return err_set(err, ERR_CONFIG,
                       "kafka sink: a topic is made of letters, digits, '.', '_' and '-'");
    return 0;
}

static int set_up(struct kafka_sink *k, struct error *err)
{
    if (kafka_settings_read(k->base.cfg.url, &k->set, &k->url, err) != 0)
        return -1;
    if (check_files(&k->url, err) != 0)
        return -1;
    if (set_topic(k, err) != 0)
        return -1;
    set_style(k);
    k->slots = calloc(KAFKA_WINDOW, sizeof *k->slots);
    if (!k->slots)
        return err_nomem(err);
    kafka_leaders_init(&k->leaders);
    if (streams_init(&k->streams) != 0)
        return err_nomem(err);
    return 0;
}

/* ask_topic asks for the topic until there is an answer, the time is over, or no broker can be
 * reached. */
static rd_kafka_resp_err_t ask_topic(struct kafka_sink *k, int64_t timeout_ms)
{
    const rd_kafka_metadata_t *md;
    int64_t until = kafka_now(k) + timeout_ms * MS_NS;
    rd_kafka_resp_err_t code;
    do {
        code = rd_kafka_metadata(k->p->rk, 0, k->p->topic, &md, PROBE_SLICE_MS);
        kafka_report_hear(k);
        bool away = k->away_since && kafka_now(k) >= k->away_since + AWAY_NS / 2;
        if (away)
            break;
    } while (code != RD_KAFKA_RESP_ERR_NO_ERROR && kafka_now(k) < until);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return code;
    k->answered = true;
    if (k->fixed && md->topic_cnt > 0) {
        code = md->topics[0].err;
        kafka_leaders_read(&k->leaders, md);
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
    kafka_fate_text(code, said);
    bool about_connection = k->trouble[0] != '\0' && kafka_fate_of(code)->fate == KAFKA_AWAY;
    if (about_connection)
        return err_set(err, ERR_UNAVAILABLE, "%s: %s", k->url.label, k->trouble);
    return err_set(err, ERR_UNAVAILABLE, "%s, topic %s: %s", k->url.label, k->topic, said);
}

static int kafka_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const struct sink_ops *ops;
    if (sink_find(cfg->url, &ops, err) != 0)
        return -1;
    struct kafka_sink *k = calloc(1, sizeof *k);
    if (!k)
        return err_nomem(err);
    k->base = (struct sink){.ops = ops, .cfg = *cfg};
    k->tail_fd = -1;
    buf_init(&k->topic_name, NAME_MAX_BYTES);
    buf_init(&k->text, TEXT_MAX);
    if (set_up(k, err) != 0) {
        kafka_close(&k->base);
        return -1;
    }
    /* Where topics are several, one that takes nothing must not hold up the others, so the sink is
     * not fail-stop as a whole, only along the events of a key. */
    k->base.caps = k->fixed ? SINK_FAILSTOP : SINK_CHAINS;
    *ret = &k->base;
    return 0;
}

/* kafka_broker names the brokers of the URL, by which the library finds the others. */
static void kafka_broker(struct sink *sk, struct sink_broker *ret)
{
    const struct kafka_sink *k = (const struct kafka_sink *)sk;
    ret->kind = "kafka";
    ret->connected = k->p && k->answered && !k->away_since;
    for (size_t i = 0; i < k->url.n_hosts; i++)
        sink_peer_add(ret->broker, k->url.hosts[i].host, k->url.hosts[i].port);
    kafka_leaders_list(&k->leaders, ret->leader);
    ret->unconfirmed = kafka_inflight(k);
    if (ret->unconfirmed > 0)
        ret->since = kafka_slot(k, k->first)->since;
}

#define KAFKA_OPS(name, scheme_, synopsis_, help_) \
    const struct sink_ops name = { \
        .scheme = scheme_, \
        .synopsis = synopsis_, \
        .help = help_, \
        .open = kafka_open, \
        .close = kafka_close, \
        .submit = kafka_submit, \
        .drive = kafka_drive, \
        .fds = kafka_fds, \
        .deadline = kafka_deadline, \
        .cancel = kafka_cancel, \
        .attended = kafka_attended, \
        .marks = kafka_marks, \
        .marks_kept = kafka_marks_kept, \
        .probe = kafka_probe, \
        .caution = kafka_caution, \
        .broker = kafka_broker, \
    }

KAFKA_OPS(kafka_ops, "kafka", "kafka://HOST:PORT/TOPIC", "write to Kafka; see docs/brokers.md");
KAFKA_OPS(kafka_tls_ops, "kafka+ssl", "kafka+ssl://HOST:PORT/TOPIC", "the same with TLS");
