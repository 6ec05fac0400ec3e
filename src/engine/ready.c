#include "engine/ready.h"

#include "engine/live.h"

void ready_init(struct ready *q)
{
    q->head = NULL;
    q->tail = &q->head;
}

void ready_push(struct ready *q, struct item *it)
{
    it->next_ready = NULL;
    *q->tail = it;
    q->tail = &it->next_ready;
}

void ready_unshift(struct ready *q, struct item *it)
{
    it->next_ready = q->head;
    q->head = it;
    if (!it->next_ready)
        q->tail = &it->next_ready;
}

struct item *ready_pop(struct ready *q)
{
    struct item *it = q->head;
    if (!it)
        return NULL;
    q->head = it->next_ready;
    if (!q->head)
        q->tail = &q->head;
    return it;
}
