/* report.h: what operators are told of a consumer's sink where they look for it, with the consumer
 * in the store (`last error`).
 *
 * It is one line, and the next one replaces it. A line is only noted here; it is written between
 * transactions, see outage_report. Once the sink answers, the line is wiped, also one of another
 * relay that has vanished since. One that says why the consumer is paused stays until it goes
 * on. */
#ifndef ENGINE_REPORT_H
#define ENGINE_REPORT_H

#include <stdbool.h>

#define REPORT_TEXT 400

/* (1) Only report.c writes these. (2) text is what the store has, or gets next if due. */
struct report {
    bool proved; /* the sink has answered since this pipeline began */
    bool paused; /* text says why the consumer is paused */
    bool due;
    char text[REPORT_TEXT]; /* "": all is well */
};

/* report_trouble notes what is wrong with the sink. report_paused notes why the sink wants no
 * more. */
void report_trouble(struct report *r, const char *what);
void report_paused(struct report *r, const char *why);
/* report_answered notes that the sink is there; was_down: it was not before; paused: the consumer
 * is paused still. */
void report_answered(struct report *r, bool was_down, bool paused);
/* report_take says whether there is something to write, and gives it once; NULL wipes the line. */
bool report_take(struct report *r, const char **ret_text);

#endif
