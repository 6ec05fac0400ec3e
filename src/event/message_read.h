/* message_read.h: which event a message holds, in whatever format it was written. */
#ifndef EVENT_MESSAGE_READ_H
#define EVENT_MESSAGE_READ_H

#include "event/message.h"

/* What a message tells about its event. (1) id is a UUID. (2) type and key are absent where the
 * format does not have them. (3) Strings are borrowed from the message, or are in `text`. */
struct message_facts {
    enum message_format format;
    struct str id, type;
    struct str key; /* order/42 */
};

/* message_read recognizes the format by what is there. ERR_INVALID: it is no message of ours. */
int message_read(const struct message *m, struct buf *text, struct message_facts *ret,
                 struct error *err);

#endif
