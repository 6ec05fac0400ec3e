/* kafka_look.c: with dedupe=on, an event that may have been written before is looked for first: one
 * that is tried again, because a relay vanished with it or its end was not heard of. */
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fd.h"
#include "sink/kafka_impl.h"

bool kafka_look_needed(const struct kafka_sink *k, const struct slot *s)
{
    return k->set.dedupe && s->doubtful;
}

/* open_tail makes the reader, when it is needed for the first time. */
static int open_tail(struct kafka_sink *k, struct error *err)
{
    if (k->tail)
        return 0;
    if (k->tail_fd < 0)
        k->tail_fd = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (k->tail_fd < 0)
        return err_set(err, ERR_UNAVAILABLE, "kafka sink: no descriptor is left");
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (kafka_producer_conf(k, conf, err) != 0) {
        rd_kafka_conf_destroy(conf);
        return -1;
    }
    return kafka_tail_new(conf, k->topic, k->base.cfg.consumer, k->tail_fd, &k->tail, err);
}

int kafka_look_begin(struct kafka_sink *k, struct slot *s, struct error *err)
{
    if (open_tail(k, err) != 0)
        return -1;
    s->state = SLOT_LOOKING;
    s->look = kafka_tail_ask(k->tail, s->d->ev->created_at);
    return 0;
}

static void warn_of_partial(struct kafka_sink *k)
{
    if (!kafka_tail_partial(k->tail) || k->told_partial)
        return;
    k->told_partial = true;
    snprintf(k->caution[k->n_caution % 3], sizeof k->caution[0],
             "topic %s has too many new messages to look for an event in all of them: one that a "
             "vanished relay had written may be repeated",
             k->topic);
    k->n_caution++;
}

void kafka_look_end(struct kafka_sink *k)
{
    uint64_t rings;
    if (!k->tail)
        return;
    (void)!read(k->tail_fd, &rings, sizeof rings);
    for (size_t i = k->first; i < k->next; i++) {
        struct slot *s = kafka_slot(k, i);
        struct kafka_place at;
        if (s->state != SLOT_LOOKING || !kafka_tail_ready(k->tail, s->look))
            continue;
        s->doubtful = false;
        s->state = SLOT_WAITING;
        if (kafka_tail_find(k->tail, s->d->ev->id, &at)) {
            s->state = SLOT_STORED;
            s->partition = at.partition;
            s->offset = at.offset;
        }
    }
    warn_of_partial(k);
}
