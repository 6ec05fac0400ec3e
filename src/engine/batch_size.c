#include "engine/batch_size.h"

#include <stdbool.h>

#include "base/clock.h"

#define START 64
#define START_SMALL 8
#define START_BYTES ((size_t)64 * 1024)
#define QUICK (100 * MS_NS) /* a full batch that took less: double the next */
#define SLOW (1000 * MS_NS) /* one that took more: halve it */

/* hold keeps n within its bounds. */
static void hold(struct batch_size *b)
{
    if (b->n < b->least) {
        b->n = b->least;
    }
    if (b->n > b->most) {
        b->n = b->most;
    }
}

void batch_size_init(struct batch_size *b, size_t in_flight, size_t most)
{
    *b = (struct batch_size){.n = START, .least = in_flight, .most = most, .bytes = START_BYTES};
    hold(b);
}

void batch_size_start_small(struct batch_size *b)
{
    b->n = START_SMALL;
    hold(b);
}

void batch_size_tune(struct batch_size *b, size_t got, int64_t took)
{
    bool full = got >= b->n;
    if (full && took < QUICK) {
        b->n *= 2;
    } else if (took > SLOW) {
        batch_size_halve(b);
    }
    hold(b);
}

void batch_size_took(struct batch_size *b, size_t bytes)
{
    size_t next = b->bytes / 2;
    if (next < BATCH_BYTES_LEAST) {
        next = BATCH_BYTES_LEAST;
    }
    if (bytes > next / 2) {
        next = bytes < BATCH_BYTES / 2 ? 2 * bytes : BATCH_BYTES;
    }
    b->bytes = next;
}

void batch_size_halve(struct batch_size *b)
{
    if (b->n > 1) {
        b->n /= 2;
    }
}

void batch_size_one(struct batch_size *b)
{
    b->n = 1;
}
