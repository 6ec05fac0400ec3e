/* report.h: the line about a consumer's sink that operators read with the consumer in the store
 * (`last error`).
 *
 * Each line replaces the one before. It is only noted here, and written between transactions: see
 * outage_report. Once the sink answers, the line is wiped, even if another relay that has since
 * vanished wrote it. A line that says why the consumer is paused stays until it is resumed. */
#ifndef ENGINE_REPORT_H
#define ENGINE_REPORT_H

#include <stdbool.h>

#define REPORT_TEXT 400

/* (1) Only report.c writes these. */
struct report {
    bool proved;            /* the sink has answered since this pipeline began */
    bool paused;            /* text says why the consumer is paused */
    bool due;               /* text has not been written yet */
    char text[REPORT_TEXT]; /* the line; "": all is well */
};

/* report_trouble notes what is wrong with the sink. report_paused notes why it has paused the
 * consumer. */
void report_trouble(struct report *r, const char *what);
void report_paused(struct report *r, const char *why);
/* report_answered notes that the sink has answered. was_down: it was down before; paused: the
 * consumer is still paused. */
void report_answered(struct report *r, bool was_down, bool paused);
/* report_take returns whether there is a line to write, once for each line. *ret_text is NULL where
 * the line is to be wiped. */
bool report_take(struct report *r, const char **ret_text);

#endif
