#include "engine/careful.h"

void careful_init(struct careful_token *t, atomic_flag *shared)
{
    *t = (struct careful_token){.shared = shared};
}

/* take takes the permission, unless another pipeline of this process has it. */
static bool take(struct careful_token *t)
{
    if (!t->shared || t->held)
        return true;
    bool taken_by_another = atomic_flag_test_and_set(t->shared);
    t->held = !taken_by_another;
    return t->held;
}

enum careful careful_mode(struct careful_token *t, size_t others)
{
    if (others > 0)
        return CAREFUL_WAIT; /* let them end first: a careful event is delivered alone */
    if (take(t))
        return CAREFUL_TAKE;
    return CAREFUL_SKIP;
}

void careful_leave(struct careful_token *t)
{
    if (!t->held)
        return;
    atomic_flag_clear(t->shared);
    t->held = false;
}

void careful_note_due(struct careful_token *t, bool due)
{
    t->due = due;
}
