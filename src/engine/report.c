#include "engine/report.h"

#include <stdio.h>

static void note(struct report *r, const char *text)
{
    snprintf(r->text, sizeof r->text, "%s", text);
    r->due = true;
}

void report_trouble(struct report *r, const char *what)
{
    note(r, what);
}

void report_paused(struct report *r, const char *why)
{
    char text[REPORT_TEXT];
    snprintf(text, sizeof text, "paused: %s", why);
    note(r, text);
    r->paused = true;
}

void report_answered(struct report *r, bool was_down, bool paused)
{
    bool resumed = r->paused && !paused;
    bool first = !r->proved;
    r->proved = true;
    if (resumed) {
        r->paused = false;
    }
    if (r->paused)
        return; /* operators should still see why it is paused */

    bool may_have_line = was_down || resumed || first;
    if (may_have_line)
        note(r, "");
}

bool report_take(struct report *r, const char **ret_text)
{
    if (!r->due)
        return false;
    r->due = false;
    *ret_text = NULL;
    if (r->text[0]) {
        *ret_text = r->text;
    }
    return true;
}
