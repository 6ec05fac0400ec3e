/* envelope.h: reads the events in the entries of a stream. */
#ifndef STREAMS_ENVELOPE_H
#define STREAMS_ENVELOPE_H

#include "base/buf.h"
#include "event/event.h"

/* envelope_read parses the output of event_envelope_write. The strings of *ret are in `text`, each
 * followed by a NUL, until `text` is reused; headers is the "_telemetry" of the payload. Any client
 * may write to a stream, so *ret has passed event_check_stored. Fails with ERR_INVALID, which names
 * the problem. */
int envelope_read(struct str envelope, struct buf *text, struct event *ret, struct error *err);

#endif
