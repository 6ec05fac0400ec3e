/* marks.c: when the sink's high-water marks are recorded. A mark is a row to write, which costs the
 * store as much as several events do. Those of few streams go with every settlement. Those of many
 * are left to a later one, a second at most while there are others: a mark that is behind is still
 * true, because it says how much is there at least. */
#include "engine/pipeline_impl.h"

#define FEW 16               /* always recorded at once */
#define MANY 16384           /* never left to later: they take memory meanwhile */
#define PAUSE (1000 * MS_NS) /* between records of those in between */

/* may_wait says whether n marks may be left to a later settlement. There must be another batch at
 * hand, whose settlement will bring them. */
static bool may_wait(const struct pipeline *p, size_t n)
{
    bool another = p->hand.n > 1;
    bool in_between = n > FEW && n < MANY;
    bool recent = pipeline_now(p) - p->marked_at < PAUSE;
    return another && in_between && recent;
}

void marks_add(struct pipeline *p, struct settlement *s)
{
    const struct hwm *marks = NULL;
    p->marking = false;
    if (!p->sk->ops->marks)
        return;
    size_t n = p->sk->ops->marks(p->sk, &marks);
    if (may_wait(p, n))
        return;
    s->marks = marks;
    s->n_marks = n;
    p->marking = true;
}

void marks_kept(struct pipeline *p)
{
    if (!p->marking)
        return;
    p->sk->ops->marks_kept(p->sk);
    p->marked_at = pipeline_now(p);
    p->marking = false;
}
