/* conn.c: the connection: connecting, the login and all other traffic on channel 0, and
 * heartbeats. */
#include "rabbit/conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/text.h"
#include "base/url.h"

#define LOGIN_MAX 16384              /* bytes of the login */
#define READ_SIZE 65536              /* of one read */
#define READS_MAX 64                 /* reads per call to rabbit_conn_drive */
#define IN_MAX ((size_t)1 << 20)     /* an incomplete frame and the data read after it */
#define LOGIN_NS (10 * 1000 * MS_NS) /* time limit of the login, per node */
#define POOL_PAGE 4096
#define FRAME_MAX 131072 /* RabbitMQ's default; used if the broker sets no limit */
#define CHANNEL_MAX 8

void rabbit_conn_init(struct rabbit_conn *c, const struct rabbit_config *cfg)
{
    *c = (struct rabbit_conn){.cfg = *cfg};
    wire_init(&c->wire, cfg->out_max, LOGIN_MAX);
    buf_init(&c->in, IN_MAX);
    init_amqp_pool(&c->pool, POOL_PAGE);
}

const char *rabbit_conn_text(amqp_bytes_t said, char out[RABBIT_TEXT])
{
    text_clean(out, RABBIT_TEXT, said.len ? said.bytes : "", said.len);
    return out;
}

static int64_t now_of(const struct rabbit_conn *c)
{
    return clock_mono(c->cfg.clock);
}

/* Drops the connection to this node, but keeps the queued frames for the next node. */
static void disconnect(struct rabbit_conn *c)
{
    wire_drop(&c->wire);
    buf_clear(&c->in);
    empty_amqp_pool(&c->pool);
    init_amqp_pool(&c->pool, POOL_PAGE);
    c->blocked = false;
    c->heartbeat = 0;
}

void rabbit_conn_close(struct rabbit_conn *c)
{
    /* Without connection.close, the broker logs that the client vanished. The method cannot follow
     * a partially written frame. */
    struct error err;
    if (c->wire.state == WIRE_READY && c->wire.sent == 0) {
        amqp_connection_close_t bye = {.reply_code = AMQP_REPLY_SUCCESS,
                                       .reply_text = rabbit_bytes(STR("done"))};
        buf_clear(&c->wire.out);
        rabbit_frame_put_method(&c->wire.out, 0, AMQP_CONNECTION_CLOSE_METHOD, &bye);
        (void)wire_flush(&c->wire, &err);
    }
    disconnect(c);
    wire_close(&c->wire);
}

void rabbit_conn_release(struct rabbit_conn *c)
{
    rabbit_conn_close(c);
    wire_release(&c->wire);
    buf_release(&c->in);
    empty_amqp_pool(&c->pool);
}

/* Connecting */

/* Starts connecting to the current node. */
static int connect_node(struct rabbit_conn *c, struct error *err)
{
    static const char protocol[8] = {'A', 'M', 'Q', 'P', 0, 0, 9, 1};
    const struct url *u = c->cfg.url;
    const struct url_host *h = &u->hosts[c->peer];
    struct wire_peer peer = {
        .label = c->label,
        .host = h->host,
        .port = h->port,
        .tls = c->cfg.tls,
        .files = {.ca = u->ca, .cert = u->cert, .key = u->key},
    };
    snprintf(c->label, sizeof c->label, "rabbitmq at %.200s:%.10s", h->host, h->port);
    c->tries++;
    c->since = now_of(c);
    if (wire_open(&c->wire, &peer, err) != 0)
        return -1;
    buf_add(&c->wire.login, protocol, sizeof protocol);
    return 0;
}

/* Moves on to the next node until all have been tried; err is then the error of the last node. */
static int connect_next(struct rabbit_conn *c, struct error *err)
{
    size_t n = c->cfg.url->n_hosts;
    disconnect(c);
    while (c->tries < n) {
        c->peer = (c->peer + 1) % n;
        if (connect_node(c, err) == 0)
            return 0;
        disconnect(c);
    }
    c->peer = (c->peer + 1) % n; /* for the next attempt */
    return -1;
}

int rabbit_conn_open(struct rabbit_conn *c, struct error *err)
{
    rabbit_conn_close(c);
    c->tries = 0;
    if (connect_node(c, err) == 0)
        return 0;
    return connect_next(c, err);
}

int rabbit_conn_send(struct rabbit_conn *c, uint16_t channel, amqp_method_number_t id, void *m)
{
    rabbit_frame_put_method(&c->wire.out, channel, id, m);
    return c->wire.out.failed ? -1 : 0;
}

/* Channel 0 */

static int send_login(struct rabbit_conn *c, amqp_method_number_t id, void *m, struct error *err)
{
    rabbit_frame_put_method(&c->wire.login, 0, id, m);
    if (c->wire.login.failed)
        return err_nomem(err);
    return 0;
}

static amqp_table_entry_t text_entry(const char *name, const char *value)
{
    return (amqp_table_entry_t){
        .key = rabbit_bytes(str_of(name)),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = rabbit_bytes(str_of(value))},
    };
}

static amqp_table_entry_t true_entry(const char *name)
{
    return (amqp_table_entry_t){
        .key = rabbit_bytes(str_of(name)),
        .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1},
    };
}

/* Returns whether a word is in a blank-separated list. */
static bool has_word(struct str list, const char *word)
{
    size_t n = strlen(word);
    while (list.n > 0) {
        const char *blank = memchr(list.p, ' ', list.n);
        size_t len = blank ? (size_t)(blank - list.p) : list.n;
        if (len == n && memcmp(list.p, word, n) == 0)
            return true;
        if (!blank)
            return false;
        list.p += len + 1;
        list.n -= len + 1;
    }
    return false;
}

/* Announces our capabilities. Without these, the broker refuses a login by closing the connection
 * without a reason, and does not notify us of alarms. */
static int start_ok(struct rabbit_conn *c, const char *mechanism, struct str response,
                    struct error *err)
{
    amqp_table_entry_t can[] = {
        true_entry("authentication_failure_close"), true_entry("basic.nack"),
        true_entry("connection.blocked"),           true_entry("consumer_cancel_notify"),
        true_entry("publisher_confirms"),
    };
    amqp_table_entry_t about[] = {
        text_entry("product", "outbox"),
        text_entry("version", OUTBOX_VERSION),
        text_entry("connection_name", c->cfg.name),
        {.key = rabbit_bytes(STR("capabilities")),
         .value = {.kind = AMQP_FIELD_KIND_TABLE,
                   .value.table = {.num_entries = sizeof can / sizeof can[0], .entries = can}}},
    };
    amqp_connection_start_ok_t m = {
        .client_properties = {.num_entries = sizeof about / sizeof about[0], .entries = about},
        .mechanism = rabbit_bytes(str_of(mechanism)),
        .response = rabbit_bytes(response),
        .locale = rabbit_bytes(STR("en_US")),
    };
    return send_login(c, AMQP_CONNECTION_START_OK_METHOD, &m, err);
}

/* Without a user, logs in as guest, like every AMQP client; brokers accept it only from
 * localhost. */
static int login_plain(struct rabbit_conn *c, struct error *err)
{
    struct error why;
    const struct url *u = c->cfg.url;
    char *password = url_password(u->password_file, u->password, &why);
    if (!password && why.code) {
        *err = why;
        err->retry_class = CLASS_DOWN;
        return -1;
    }

    struct buf b;
    buf_init(&b, RABBIT_FRAME_MIN / 2);
    buf_addc(&b, '\0');
    buf_adds(&b, u->user ? u->user : "guest");
    buf_addc(&b, '\0');
    if (password)
        buf_adds(&b, password);
    else if (!u->user)
        buf_adds(&b, "guest");
    int rc;
    if (b.failed)
        rc = err_class(err, ERR_CONFIG, CLASS_DOWN, 0, "%s: user and password are too long",
                       c->label);
    else
        rc = start_ok(c, "PLAIN", (struct str){b.p, b.n}, err);

    buf_wipe(&b);
    buf_release(&b);
    url_password_free(password);
    return rc;
}

static int handle_start(struct rabbit_conn *c, const amqp_connection_start_t *m, struct error *err)
{
    const char *mechanism = c->cfg.external ? "EXTERNAL" : "PLAIN";
    if (!has_word(rabbit_str(m->mechanisms), mechanism)) {
        char offered[RABBIT_TEXT];
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s does not offer SASL %s, only %s",
                         c->label, mechanism, rabbit_conn_text(m->mechanisms, offered));
    }
    if (c->cfg.external)
        return start_ok(c, mechanism, STR(""), err);
    return login_plain(c, err);
}

/* Accepts the smaller of two limits; 0 means no limit. */
static int handle_tune(struct rabbit_conn *c, const amqp_connection_tune_t *m, struct error *err)
{
    if (m->frame_max > 0 && m->frame_max < RABBIT_FRAME_MIN)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                         "%s limits frames to %u bytes, which is too small", c->label,
                         m->frame_max);
    c->frame_max = FRAME_MAX;
    if (m->frame_max > 0 && m->frame_max < FRAME_MAX)
        c->frame_max = m->frame_max;

    int heartbeat = c->cfg.heartbeat_s;
    if (m->heartbeat > 0 && m->heartbeat < heartbeat)
        heartbeat = m->heartbeat;
    c->heartbeat = (int64_t)heartbeat * 1000 * MS_NS;

    amqp_connection_tune_ok_t ok = {
        .channel_max = m->channel_max && m->channel_max < CHANNEL_MAX ? m->channel_max
                                                                      : CHANNEL_MAX,
        .frame_max = (uint32_t)c->frame_max,
        .heartbeat = (uint16_t)heartbeat,
    };
    amqp_connection_open_t open = {.virtual_host = rabbit_bytes(str_of(c->cfg.vhost))};
    if (send_login(c, AMQP_CONNECTION_TUNE_OK_METHOD, &ok, err) != 0)
        return -1;
    return send_login(c, AMQP_CONNECTION_OPEN_METHOD, &open, err);
}

/* Reports why the broker closed the connection. */
static int connection_closed(struct rabbit_conn *c, const amqp_connection_close_t *m,
                             struct error *err)
{
    char said[RABBIT_TEXT];
    rabbit_conn_text(m->reply_text, said);
    const char *what = c->wire.state == WIRE_READY ? "closed the connection" : "refused the login";
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, m->reply_code, "%s %s: %s", c->label, what,
                     said);
}

/* Handles a method on channel 0, and sets *ret_ready once the login is complete. Until then,
 * replies go into c->login. If the broker refuses or closes, fails with CLASS_DOWN and the broker's
 * code. */
static int handle_method(struct rabbit_conn *c, const amqp_method_t *m, bool *ret_ready,
                         struct error *err)
{
    bool logging_in = c->wire.state == WIRE_LOGIN;
    switch (m->id) {
    case AMQP_CONNECTION_START_METHOD:
        if (logging_in)
            return handle_start(c, m->decoded, err);
        break;
    case AMQP_CONNECTION_TUNE_METHOD:
        if (logging_in)
            return handle_tune(c, m->decoded, err);
        break;
    case AMQP_CONNECTION_OPEN_OK_METHOD:
        *ret_ready = logging_in;
        if (logging_in)
            return 0;
        break;
    case AMQP_CONNECTION_CLOSE_METHOD: return connection_closed(c, m->decoded, err);
    case AMQP_CONNECTION_BLOCKED_METHOD:
        c->blocked = true;
        rabbit_conn_text(((const amqp_connection_blocked_t *)m->decoded)->reason, c->reason);
        return 0;
    case AMQP_CONNECTION_UNBLOCKED_METHOD: c->blocked = false; return 0;
    default: break;
    }
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s sent an unexpected %s", c->label,
                     amqp_method_name(m->id));
}

/* Reading */

/* Reports that the peer violates the protocol. */
static int protocol_error(const struct rabbit_conn *c, struct error *err)
{
    err_prefix(err, "%s", c->label);
    err->code = ERR_UNAVAILABLE;
    err->retry_class = CLASS_DOWN;
    return -1;
}

/* Handles one frame of channel 0, and passes one of another channel on. */
static int handle_frame(struct rabbit_conn *c, const struct rabbit_frame *f, rabbit_frame_fn *frame,
                        void *ctx, struct error *err)
{
    amqp_method_t m = {0};
    bool has_method = f->type == RABBIT_METHOD, login_done = false;
    if (has_method && rabbit_frame_method(f, &c->pool, &m, err) != 0)
        return protocol_error(c, err);

    int rc = 0;
    if (f->channel != 0 && c->wire.state == WIRE_READY) {
        rc = frame(ctx, f, has_method ? &m : NULL, err);
    } else if (f->channel != 0) {
        rc = err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                       "%s sent a frame on a channel before the login", c->label);
    } else if (has_method) {
        rc = handle_method(c, &m, &login_done, err);
    } else if (f->type != RABBIT_HEARTBEAT) {
        err_set(err, ERR_INVALID, "the broker sent a message on channel 0");
        rc = protocol_error(c, err);
    }
    if (login_done)
        wire_accepted(&c->wire);
    recycle_amqp_pool(&c->pool);
    return rc;
}

/* Handles the complete frames and keeps the rest. Until limits are negotiated, frames are small. */
static int handle_frames(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx,
                         struct error *err)
{
    size_t used = 0;
    int rc = 0;
    while (rc == 0) {
        struct rabbit_frame f;
        struct str rest = {c->in.p + used, c->in.n - used};
        size_t max = c->wire.state == WIRE_READY ? c->frame_max : RABBIT_FRAME_MIN;
        ssize_t k = rabbit_frame_next(rest, max, &f, err);
        if (k < 0)
            return protocol_error(c, err);
        if (k == 0)
            break;
        used += (size_t)k;
        rc = handle_frame(c, &f, frame, ctx, err);
    }
    if (rc != 0)
        return rc;
    if (used > 0) {
        memmove(c->in.p, c->in.p + used, c->in.n - used);
        c->in.n -= used;
    }
    return 0;
}

/* Reads available data, up to READS_MAX times: a server that never pauses must not block us. */
static int read_frames(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err)
{
    for (int i = 0; i < READS_MAX; i++) {
        char *to = buf_reserve(&c->in, READ_SIZE);
        if (!to)
            return err_nomem(err);
        ssize_t k = wire_read(&c->wire, to, READ_SIZE, err);
        if (k < 0)
            return wire_lost(&c->wire, err);
        if (k == 0)
            return 0;
        c->in.n += (size_t)k;
        c->last_read = now_of(c);
        if (handle_frames(c, frame, ctx, err) != 0)
            return -1;
        if (wire_drained(&c->wire, (size_t)k, READ_SIZE))
            return 0;
    }
    return 0;
}

/* Driving */

/* Continues connecting and logging in. */
static int drive_login(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err)
{
    bool connecting = c->wire.state < WIRE_LOGIN;
    if (wire_advance(&c->wire, err) != 0)
        return -1;
    if (connecting)
        c->last_read = c->last_write = now_of(c);
    if (c->wire.state == WIRE_LOGIN) {
        if (wire_flush(&c->wire, err) != 0)
            return wire_lost(&c->wire, err);
        if (read_frames(c, frame, ctx, err) != 0)
            return -1;
    }
    /* Write the reply to the method just read. */
    if (c->wire.state == WIRE_LOGIN && wire_flush(&c->wire, err) != 0)
        return wire_lost(&c->wire, err);
    if (c->wire.state == WIRE_READY || now_of(c) < c->since + LOGIN_NS)
        return 0;
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s: login timed out after %d s",
                     c->label, (int)(LOGIN_NS / MS_NS / 1000));
}

/* Sends a heartbeat if no other data was written for a while, and gives up on a peer that has been
 * silent for two intervals. */
static int keep_heartbeat(struct rabbit_conn *c, struct error *err)
{
    if (c->heartbeat == 0)
        return 0;
    int64_t now = now_of(c);
    if (now >= c->last_read + 2 * c->heartbeat)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                         "%s has been silent for two heartbeats of %d s", c->label,
                         (int)(c->heartbeat / MS_NS / 1000));
    if (now >= c->last_write + c->heartbeat / 2 && wire_queued(&c->wire) == 0)
        rabbit_frame_put_heartbeat(&c->wire.out);
    return 0;
}

static int write_out(struct rabbit_conn *c, struct error *err)
{
    size_t before = wire_queued(&c->wire);
    if (before == 0)
        return 0;
    if (wire_flush(&c->wire, err) != 0)
        return -1;
    if (wire_queued(&c->wire) < before)
        c->last_write = now_of(c);
    return 0;
}

/* Reads even after a failed write: confirms that the broker sent before the failure still count. */
static int drive_ready(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err)
{
    struct error cut;
    int written = write_out(c, &cut);
    if (read_frames(c, frame, ctx, err) != 0)
        return -1;
    if (written == 0 && keep_heartbeat(c, err) != 0)
        return -1;
    /* Write the frames queued in response, and a heartbeat. */
    if (written == 0)
        written = write_out(c, &cut);
    if (written == 0)
        return 0;
    *err = cut;
    return wire_lost(&c->wire, err);
}

int rabbit_conn_drive(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err)
{
    if (c->wire.state == WIRE_CLOSED)
        return 0;
    if (c->wire.state != WIRE_READY && drive_login(c, frame, ctx, err) != 0) {
        /* If a node is unreachable, or fails before answering the login, try the next one. A
         * refusal would be the same everywhere. */
        bool refused = err->native == AMQP_ACCESS_REFUSED || c->wire.state == WIRE_READY;
        if (refused)
            return -1;
        return connect_next(c, err);
    }
    if (c->wire.state == WIRE_READY)
        return drive_ready(c, frame, ctx, err);
    return 0;
}

int64_t rabbit_conn_deadline(const struct rabbit_conn *c)
{
    if (c->wire.state == WIRE_CLOSED)
        return CLOCK_NEVER;
    if (c->wire.state != WIRE_READY)
        return c->since + LOGIN_NS;
    if (c->heartbeat == 0)
        return CLOCK_NEVER;
    int64_t silence = c->last_read + 2 * c->heartbeat;
    if (wire_queued(&c->wire) > 0)
        return silence; /* unwritten data makes a heartbeat unnecessary */
    int64_t beat = c->last_write + c->heartbeat / 2;
    return min_i64(beat, silence);
}
