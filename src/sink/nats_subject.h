/* nats_subject.h: the subject of an event, made by a template. */
#ifndef SINK_NATS_SUBJECT_H
#define SINK_NATS_SUBJECT_H

#include "event/template.h"

#define NATS_SUBJECT_MAX 3000 /* bytes; the server takes lines of 4 KiB */

/* nats_subject_check refuses a template whose own text makes no subject: with blanks, wildcards or
 * empty tokens. ERR_CONFIG. */
int nats_subject_check(const char *text, struct error *err);
/* nats_subject_pattern appends what every subject of a template matches: orders.{type} becomes
 * orders.>, and a.{tenant}.b becomes a.*.b. */
void nats_subject_pattern(const char *text, struct buf *b);
/* nats_subject_escape appends a value so that it is one token, or, with `levels`, tokens that are
 * not empty. It is a template_escape: blanks, control characters, * > % and dots become %XX. */
void nats_subject_escape(struct buf *b, struct str value, bool levels);
/* nats_subject_whole says whether what a template has made is a subject: a value that is empty may
 * have left an empty token. */
bool nats_subject_whole(struct str subject);

#endif
