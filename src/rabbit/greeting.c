#include "rabbit/greeting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define FRAME_MAX 131072 /* RabbitMQ's default; used if a broker has no limit */
#define CHANNEL_MAX 8

void rabbit_greeting_begin(struct rabbit_conn *c)
{
    static const char protocol[8] = {'A', 'M', 'Q', 'P', 0, 0, 9, 1};
    buf_add(&c->greet, protocol, sizeof protocol);
}

static int say(struct rabbit_conn *c, amqp_method_number_t id, void *m, struct error *err)
{
    rabbit_frame_put_method(&c->greet, 0, id, m);
    if (c->greet.failed)
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

/* Whether a word is in a blank-separated list. */
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

static struct str property(const amqp_table_t *t, const char *name)
{
    for (int i = 0; i < t->num_entries; i++) {
        const amqp_table_entry_t *e = &t->entries[i];
        bool found = str_is(rabbit_str(e->key), name) && e->value.kind == AMQP_FIELD_KIND_UTF8;
        if (found)
            return rabbit_str(e->value.value.bytes);
    }
    return STR("");
}

static void note_product(struct rabbit_conn *c, const amqp_table_t *t)
{
    struct str product = property(t, "product"), version = property(t, "version");
    char both[RABBIT_TEXT];
    int n = snprintf(both, sizeof both, "%.*s %.*s", (int)(product.n < 80 ? product.n : 80),
                     product.n ? product.p : "", (int)(version.n < 80 ? version.n : 80),
                     version.n ? version.p : "");
    text_clean(c->product, sizeof c->product, both, (size_t)n);
}

/* Announces our capabilities. Without these, the broker drops a refused login without a reason, and
 * does not notify us of alarms. */
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
    return say(c, AMQP_CONNECTION_START_OK_METHOD, &m, err);
}

static int login_plain(struct rabbit_conn *c, struct error *err)
{
    struct error why = {0};
    char *password = c->cfg.password(c->cfg.password_ctx, &why);
    if (!password && why.code) {
        *err = why;
        err->retry_class = CLASS_DOWN;
        return -1;
    }

    struct buf b;
    buf_init(&b, RABBIT_FRAME_MIN / 2);
    buf_addc(&b, '\0');
    buf_adds(&b, c->cfg.user);
    buf_addc(&b, '\0');
    if (password)
        buf_adds(&b, password);
    int rc;
    if (b.failed)
        rc = err_class(err, ERR_CONFIG, CLASS_DOWN, 0, "%s: user and password are too long",
                       rabbit_conn_label(c));
    else
        rc = start_ok(c, "PLAIN", (struct str){b.p, b.n}, err);

    if (b.p)
        explicit_bzero(b.p, b.cap);
    buf_release(&b);
    if (password)
        explicit_bzero(password, strlen(password));
    free(password);
    return rc;
}

static int take_start(struct rabbit_conn *c, const amqp_connection_start_t *m, struct error *err)
{
    const char *mechanism = c->cfg.external ? "EXTERNAL" : "PLAIN";
    note_product(c, &m->server_properties);
    if (!has_word(rabbit_str(m->mechanisms), mechanism)) {
        char offered[RABBIT_TEXT];
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s does not offer SASL %s, only %s",
                         rabbit_conn_label(c), mechanism, rabbit_conn_text(m->mechanisms, offered));
    }
    if (c->cfg.external)
        return start_ok(c, mechanism, STR(""), err);
    return login_plain(c, err);
}

/* Accepts the smaller of two limits; 0 is no limit. */
static int take_tune(struct rabbit_conn *c, const amqp_connection_tune_t *m, struct error *err)
{
    bool too_small = m->frame_max > 0 && m->frame_max < RABBIT_FRAME_MIN;
    if (too_small)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s wants frames of %u bytes",
                         rabbit_conn_label(c), m->frame_max);
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
    if (say(c, AMQP_CONNECTION_TUNE_OK_METHOD, &ok, err) != 0)
        return -1;
    return say(c, AMQP_CONNECTION_OPEN_METHOD, &open, err);
}

/* Reports why the broker closed the connection. */
static int closed(struct rabbit_conn *c, const amqp_connection_close_t *m, struct error *err)
{
    char said[RABBIT_TEXT];
    rabbit_conn_text(m->reply_text, said);
    const char *what = c->state == RABBIT_READY ? "closed the connection" : "refused the login";
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, m->reply_code, "%s %s: %s",
                     rabbit_conn_label(c), what, said);
}

int rabbit_greeting_take(struct rabbit_conn *c, const amqp_method_t *m, bool *ret_ready,
                         struct error *err)
{
    bool greeting = c->state == RABBIT_GREETING;
    switch (m->id) {
    case AMQP_CONNECTION_START_METHOD:
        if (greeting)
            return take_start(c, m->decoded, err);
        break;
    case AMQP_CONNECTION_TUNE_METHOD:
        if (greeting)
            return take_tune(c, m->decoded, err);
        break;
    case AMQP_CONNECTION_OPEN_OK_METHOD:
        *ret_ready = greeting;
        if (greeting)
            return 0;
        break;
    case AMQP_CONNECTION_CLOSE_METHOD: return closed(c, m->decoded, err);
    case AMQP_CONNECTION_BLOCKED_METHOD:
        c->blocked = true;
        rabbit_conn_text(((const amqp_connection_blocked_t *)m->decoded)->reason, c->reason);
        return 0;
    case AMQP_CONNECTION_UNBLOCKED_METHOD: c->blocked = false; return 0;
    default: break;
    }
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s sent an unexpected %s",
                     rabbit_conn_label(c), amqp_method_name(m->id));
}
