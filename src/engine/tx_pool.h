/* tx_pool.h: where a pipeline gets the connection that its named handlers work on, for a step at a
 * time. */
#ifndef ENGINE_TX_POOL_H
#define ENGINE_TX_POOL_H

#include "store/store.h"

/* acquire may wait; release gives the connection back, with no transaction open. acquire == NULL:
 * there is no pool. */
struct tx_pool {
    int (*acquire)(void *ctx, struct store **ret, struct error *err);
    void (*release)(void *ctx, struct store *st);
    void *ctx;
};

#endif
