#include "sink/broker.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CAUTIONS (sizeof((struct broker *)0)->caution / BROKER_CAUTION)

/* Opening and closing */

int broker_open(const struct sink_config *cfg, const struct broker_kind *kind, struct sink **ret,
                struct error *err)
{
    const struct sink_ops *ops;
    if (sink_find(cfg->url, &ops, err) != 0)
        return -1;
    struct broker *b = calloc(1, kind->size);
    if (!b)
        return err_nomem(err);
    b->base = (struct sink){.ops = ops, .cfg = *cfg};
    b->kind = kind;
    buf_init(&b->destination, kind->name_max);
    buf_init(&b->text, kind->message_max);

    int rc = kind->set_up(&b->base, err);
    if (rc == 0 && kind->in_flight > 0)
        rc = window_init(&b->window, &b->base, kind->in_flight, kind->item_size, err);
    if (rc == 0 && window_marks_init(&b->marks) != 0)
        rc = err_nomem(err);
    if (rc != 0) {
        ops->close(&b->base);
        return -1;
    }
    *ret = &b->base;
    return 0;
}

void broker_close(struct sink *sk)
{
    struct broker *b = (struct broker *)sk;
    template_free(b->name);
    buf_release(&b->destination);
    buf_release(&b->text);
    window_release(&b->window);
    window_marks_release(&b->marks);
    free(b);
}

int broker_route(struct broker *b, const char *name, struct message_style style, struct error *err)
{
    b->style = style;
    if (template_new(name, &b->name, err) != 0)
        return err_prefix(err, "%s sink: %s", b->kind->name, b->kind->destination);
    b->fixed = template_fixed(b->name);
    return 0;
}

struct str broker_name(struct broker *b, const struct event *ev, struct error *err)
{
    buf_clear(&b->destination);
    if (template_write(b->name, ev, b->kind->escape, &b->destination, err) != 0)
        return (struct str){NULL, 0};
    return (struct str){b->destination.p, b->destination.n};
}

int broker_message(struct broker *b, const struct delivery *d, struct str destination,
                   struct message *ret, struct error *err)
{
    return message_make(&b->style, d->ev, destination, str_of(b->base.cfg.consumer), d->attempt,
                        &b->text, ret, err);
}

void broker_settings_release(const struct option_def *table, void *settings)
{
    for (const struct option_def *o = table; o->name; o++) {
        bool is_owned = o->set == option_copy || o->set == option_file;
        if (!is_owned)
            continue;
        char **text = (char **)(void *)((char *)settings + o->at);
        free(*text);
        *text = NULL;
    }
}

int broker_check_files(const char *const *files, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (files[i] && access(files[i], R_OK) != 0)
            return err_errno(err, ERR_CONFIG, errno, "could not read %s", files[i]);
    }
    return 0;
}

int broker_check_url(const struct url *u, const char *secure, struct error *err)
{
    bool has_files = u->ca || u->cert || u->key;
    if (has_files && strcmp(u->scheme, secure) != 0)
        return err_set(err, ERR_CONFIG, "ca, cert and key require %s://, which has TLS", secure);
    const char *const files[] = {u->password_file, u->ca, u->cert, u->key};
    return broker_check_files(files, sizeof files / sizeof files[0], err);
}

/* Reports to the engine, to operators and to the store */

bool broker_unsent(struct broker *b, struct delivery *d, const struct error *err)
{
    struct sink_result res = sink_unsent(err);
    sink_done(&b->base, d, &res);
    return res.status == SINK_REJECT;
}

void broker_set_caution(struct broker *b, const char *fmt, ...)
{
    va_list ap;
    const char *last = b->caution[b->cautions % CAUTIONS];
    char *next = b->caution[(b->cautions + 1) % CAUTIONS];
    va_start(ap, fmt);
    vsnprintf(next, BROKER_CAUTION, fmt, ap);
    va_end(ap);
    if (strcmp(next, last) != 0)
        b->cautions++;
}

const char *broker_caution(struct sink *sk)
{
    const struct broker *b = (const struct broker *)sk;
    const char *text = b->caution[b->cautions % CAUTIONS];
    return text[0] != '\0' ? text : NULL;
}

size_t broker_marks(struct sink *sk, const struct hwm **ret)
{
    return window_marks_list(&((struct broker *)sk)->marks, ret);
}

void broker_marks_recorded(struct sink *sk)
{
    window_marks_recorded(&((struct broker *)sk)->marks);
}
