/* bugs.c: which deliberate bug is on, for programs built with them: $OUTBOX_BUG. */
#include "base/bug.h"

#include <stdlib.h>
#include <string.h>

bool bug_is(const char *name)
{
    const char *on = getenv("OUTBOX_BUG");
    return on && strcmp(on, name) == 0;
}
