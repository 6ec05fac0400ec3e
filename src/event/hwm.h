/* hwm.h: a high-water mark: how far a stream of a sink has been written. */
#ifndef EVENT_HWM_H
#define EVENT_HWM_H

#include <stdint.h>

#include "base/str.h"

/* The last id in a stream, as two growing numbers; Redis writes it as hi-lo. */
struct hwm {
    struct str stream;
    int64_t hi, lo;
};

#endif
