#include "sink/broker.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CAUTIONS (sizeof((struct broker *)0)->caution / BROKER_CAUTION)

/* Opening and closing */

int broker_open(const struct sink_config *cfg, size_t size,
                int (*set_up)(struct sink *sk, struct error *err), struct sink **ret,
                struct error *err)
{
    const struct sink_ops *ops;
    if (sink_find(cfg->url, &ops, err) != 0)
        return -1;
    struct broker *b = calloc(1, size);
    if (!b)
        return err_nomem(err);
    b->base = (struct sink){.ops = ops, .cfg = *cfg};

    int rc = set_up(&b->base, err);
    if (rc == 0 && streams_init(&b->marks) != 0)
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
    streams_release(&b->marks);
    free(b);
}

int broker_check_files(const char *kind, const char *const *files, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (files[i] && access(files[i], R_OK) != 0)
            return err_errno(err, ERR_CONFIG, errno, "%s sink: could not read %s", kind, files[i]);
    }
    return 0;
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
    return streams_dirty(&((struct broker *)sk)->marks, ret);
}

void broker_marks_kept(struct sink *sk)
{
    streams_kept(&((struct broker *)sk)->marks);
}
