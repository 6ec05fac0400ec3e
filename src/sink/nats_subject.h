/* nats_subject.h: the subject of an event, built from a template. */
#ifndef SINK_NATS_SUBJECT_H
#define SINK_NATS_SUBJECT_H

#include "event/template.h"

#define NATS_SUBJECT_MAX 3000 /* bytes; the server takes lines of 4 KiB */

/* nats_subject_check refuses a template whose literal text cannot be a subject: with blanks,
 * wildcards or empty tokens. ERR_CONFIG. */
int nats_subject_check(const char *text, struct error *err);
/* nats_subject_pattern appends a pattern that every subject of a template matches: orders.{type}
 * becomes orders.>, and a.{tenant}.b becomes a.*.b. */
void nats_subject_pattern(const char *text, struct buf *b);
/* nats_subject_escape appends a value as one token, or, with `levels`, as non-empty tokens. It is a
 * template_escape: blanks, control characters, * > % and dots become %XX. */
void nats_subject_escape(struct buf *b, struct str value, bool levels);
/* nats_subject_whole returns whether the result of a template is a valid subject: an empty value
 * may have left an empty token. */
bool nats_subject_whole(struct str subject);

#endif
