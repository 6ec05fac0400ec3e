/* lender.h: who lends a pipeline the store handle that its named handlers work on, for a step at a
 * time. */
#ifndef ENGINE_LENDER_H
#define ENGINE_LENDER_H

#include "store/store.h"

/* take may wait; give takes the handle back, with no transaction open. take == NULL: nobody
 * lends. */
struct work_lender {
    int (*take)(void *ctx, struct store **ret, struct error *err);
    void (*give)(void *ctx, struct store *st);
    void *ctx;
};

#endif
