#include "rabbit/conn.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "rabbit/greeting.h"

#define GREET_MAX 16384              /* bytes of the login */
#define READ_SIZE 65536              /* of one read */
#define READS_MAX 64                 /* per call of rabbit_conn_drive */
#define IN_MAX ((size_t)1 << 20)     /* an incomplete frame, and what was read after it */
#define LOGIN_NS (10 * 1000 * MS_NS) /* to log in, per node */
#define POOL_PAGE 4096

void rabbit_conn_init(struct rabbit_conn *c, const struct rabbit_config *cfg)
{
    *c = (struct rabbit_conn){.cfg = *cfg};
    wire_init(&c->wire);
    buf_init(&c->in, IN_MAX);
    buf_init(&c->out, cfg->out_max);
    buf_init(&c->greet, GREET_MAX);
    init_amqp_pool(&c->pool, POOL_PAGE);
}

const char *rabbit_conn_label(const struct rabbit_conn *c)
{
    return c->cfg.peers[c->peer].label;
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

/* The only function that sets the state. A connection only moves forward, or is closed. */
static void change_state(struct rabbit_conn *c, enum rabbit_state to)
{
    assert(to == RABBIT_CLOSED || to > c->state);
    c->state = to;
}

/* Wipes the login: it contained the password. */
static void forget_greeting(struct rabbit_conn *c)
{
    if (c->greet.p)
        explicit_bzero(c->greet.p, c->greet.cap);
    buf_clear(&c->greet);
    c->greet_sent = 0;
}

/* Drops the connection to this node but keeps what is queued, for the next. */
static void hang_up(struct rabbit_conn *c)
{
    wire_close(&c->wire);
    change_state(c, RABBIT_CLOSED);
    forget_greeting(c);
    buf_clear(&c->in);
    empty_amqp_pool(&c->pool);
    init_amqp_pool(&c->pool, POOL_PAGE);
    c->blocked = false;
    c->heartbeat = 0;
}

void rabbit_conn_close(struct rabbit_conn *c)
{
    /* Send connection.close to a broker that is listening, unless something is half written;
     * otherwise it logs that we were cut off. */
    struct error err;
    if (c->state == RABBIT_READY && c->sent == 0) {
        amqp_connection_close_t bye = {.reply_code = AMQP_REPLY_SUCCESS,
                                       .reply_text = rabbit_bytes(STR("done"))};
        buf_clear(&c->out);
        rabbit_frame_put_method(&c->out, 0, AMQP_CONNECTION_CLOSE_METHOD, &bye);
        (void)wire_flush(&c->wire, &c->out, &c->sent, &err);
    }
    hang_up(c);
    buf_clear(&c->out);
    c->sent = 0;
}

void rabbit_conn_release(struct rabbit_conn *c)
{
    rabbit_conn_close(c);
    buf_release(&c->in);
    buf_release(&c->out);
    buf_release(&c->greet);
    empty_amqp_pool(&c->pool);
}

/* Connecting */

/* Starts connecting to the current node. */
static int connect_node(struct rabbit_conn *c, struct error *err)
{
    c->tries++;
    c->since = now_of(c);
    if (wire_open(&c->wire, &c->cfg.peers[c->peer], err) != 0)
        return -1;
    change_state(c, RABBIT_CONNECTING);
    rabbit_greeting_begin(c);
    return 0;
}

/* Moves on to the next node, until all have been tried; err is then that of the last one. */
static int connect_next(struct rabbit_conn *c, struct error *err)
{
    hang_up(c);
    while (c->tries < c->cfg.n_peers) {
        c->peer = (c->peer + 1) % c->cfg.n_peers;
        if (connect_node(c, err) == 0)
            return 0;
        hang_up(c);
    }
    c->peer = (c->peer + 1) % c->cfg.n_peers; /* for the next attempt */
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
    rabbit_frame_put_method(&c->out, channel, id, m);
    return c->out.failed ? -1 : 0;
}

/* Reading */

/* Reports that the peer violates the protocol. */
static int protocol_error(const struct rabbit_conn *c, struct error *err)
{
    err_prefix(err, "%s", rabbit_conn_label(c));
    err->code = ERR_UNAVAILABLE;
    err->retry_class = CLASS_DOWN;
    return -1;
}

/* Dispatches one frame. Channel 0 is handled here. */
static int take_frame(struct rabbit_conn *c, const struct rabbit_frame *f, rabbit_frame_fn *frame,
                      void *ctx, struct error *err)
{
    amqp_method_t m = {0};
    bool has_method = f->type == RABBIT_METHOD, login_done = false;
    if (has_method && rabbit_frame_method(f, &c->pool, &m, err) != 0)
        return protocol_error(c, err);

    int rc = 0;
    if (f->channel != 0 && c->state == RABBIT_READY) {
        rc = frame(ctx, f, has_method ? &m : NULL, err);
    } else if (f->channel != 0) {
        rc = err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                       "%s sent a frame on a channel before the login", rabbit_conn_label(c));
    } else if (has_method) {
        rc = rabbit_greeting_take(c, &m, &login_done, err);
    } else if (f->type != RABBIT_HEARTBEAT) {
        err_set(err, ERR_INVALID, "it sent a message on channel 0");
        rc = protocol_error(c, err);
    }
    if (login_done) {
        change_state(c, RABBIT_READY);
        forget_greeting(c);
    }
    recycle_amqp_pool(&c->pool);
    return rc;
}

/* Dispatches the complete frames and keeps the rest. Until limits are negotiated, a frame is
 * small. */
static int take_frames(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err)
{
    size_t used = 0;
    int rc = 0;
    while (rc == 0) {
        struct rabbit_frame f;
        struct str rest = {c->in.p + used, c->in.n - used};
        size_t max = c->state == RABBIT_READY ? c->frame_max : RABBIT_FRAME_MIN;
        ssize_t k = rabbit_frame_next(rest, max, &f, err);
        if (k < 0)
            return protocol_error(c, err);
        if (k == 0)
            break;
        used += (size_t)k;
        rc = take_frame(c, &f, frame, ctx, err);
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
        c->heard = now_of(c);
        if (take_frames(c, frame, ctx, err) != 0)
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
    if (c->state == RABBIT_CONNECTING) {
        if (wire_advance(&c->wire, err) != 0)
            return -1;
        if (c->wire.state == WIRE_OPEN) {
            change_state(c, RABBIT_GREETING);
            c->heard = c->told = now_of(c);
        }
    }
    if (c->state == RABBIT_GREETING) {
        if (wire_flush(&c->wire, &c->greet, &c->greet_sent, err) != 0)
            return wire_lost(&c->wire, err);
        if (read_frames(c, frame, ctx, err) != 0)
            return -1;
    }
    /* Write the reply to what was just read. */
    if (c->state == RABBIT_GREETING && wire_flush(&c->wire, &c->greet, &c->greet_sent, err) != 0)
        return wire_lost(&c->wire, err);
    if (c->state == RABBIT_READY || now_of(c) < c->since + LOGIN_NS)
        return 0;
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s: login timed out after %d s",
                     rabbit_conn_label(c), (int)(LOGIN_NS / MS_NS / 1000));
}

/* Sends a heartbeat if nothing else was written for a while, and gives up a peer that has been
 * silent for two intervals. */
static int keep_heartbeat(struct rabbit_conn *c, struct error *err)
{
    if (c->heartbeat == 0)
        return 0;
    int64_t now = now_of(c);
    if (now >= c->heard + 2 * c->heartbeat)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                         "%s has been silent for two heartbeats of %d s", rabbit_conn_label(c),
                         (int)(c->heartbeat / MS_NS / 1000));
    bool quiet = now >= c->told + c->heartbeat / 2 && rabbit_conn_queued(c) == 0;
    if (quiet)
        rabbit_frame_put_heartbeat(&c->out);
    return 0;
}

static int write_out(struct rabbit_conn *c, struct error *err)
{
    size_t before = rabbit_conn_queued(c);
    if (before == 0)
        return 0;
    if (wire_flush(&c->wire, &c->out, &c->sent, err) != 0)
        return -1;
    if (rabbit_conn_queued(c) < before)
        c->told = now_of(c);
    return 0;
}

/* Reads even after a failed write: confirms that the broker sent before it went away still
 * count. */
static int drive_ready(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err)
{
    struct error cut;
    int written = write_out(c, &cut);
    if (read_frames(c, frame, ctx, err) != 0)
        return -1;
    if (written == 0 && keep_heartbeat(c, err) != 0)
        return -1;
    /* Write what was queued in response, and a heartbeat. */
    if (written == 0)
        written = write_out(c, &cut);
    if (written == 0)
        return 0;
    *err = cut;
    return wire_lost(&c->wire, err);
}

int rabbit_conn_drive(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err)
{
    if (c->state == RABBIT_CLOSED)
        return 0;
    if (c->state != RABBIT_READY && drive_login(c, frame, ctx, err) != 0) {
        /* If a node cannot be reached, or fails before it has answered the login, try the next one;
         * a refusal would be the same everywhere. */
        bool refused = err->native == AMQP_ACCESS_REFUSED || c->state == RABBIT_READY;
        if (refused)
            return -1;
        return connect_next(c, err);
    }
    if (c->state == RABBIT_READY)
        return drive_ready(c, frame, ctx, err);
    return 0;
}

struct pollfd rabbit_conn_poll(const struct rabbit_conn *c)
{
    bool unsent = c->greet_sent < c->greet.n;
    if (c->state == RABBIT_READY)
        unsent = rabbit_conn_queued(c) > 0;
    return wire_poll(&c->wire, unsent);
}

int64_t rabbit_conn_deadline(const struct rabbit_conn *c)
{
    if (c->state == RABBIT_CLOSED)
        return CLOCK_NEVER;
    if (c->state != RABBIT_READY)
        return c->since + LOGIN_NS;
    if (c->heartbeat == 0)
        return CLOCK_NEVER;
    int64_t silence = c->heard + 2 * c->heartbeat;
    if (rabbit_conn_queued(c) > 0)
        return silence; /* unwritten data stands for a heartbeat */
    int64_t beat = c->told + c->heartbeat / 2;
    return beat < silence ? beat : silence;
}
