/* ready.h: a queue of events in the order in which they are submitted. */
#ifndef ENGINE_READY_H
#define ENGINE_READY_H

struct item; /* of live.h */

/* (1) *tail is NULL, and is where the next item goes. The queue owns no item. */
struct ready {
    struct item *head, **tail;
};

/* ready_init empties the queue. */
void ready_init(struct ready *q);
/* ready_push puts an item last. */
void ready_push(struct ready *q, struct item *it);
/* ready_unshift puts an item first. */
void ready_unshift(struct ready *q, struct item *it);
/* ready_pop takes the first item off the queue and returns it; NULL: there is none. */
struct item *ready_pop(struct ready *q);

#endif
