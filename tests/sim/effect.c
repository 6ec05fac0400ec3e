/* effect.c: the effects of handlers, rows of an application table, written in the handler's
 * transaction. The table has no key: only the engine keeps an effect from happening twice. */
#include <stdio.h>

#include "sim.h"

void effect_init(struct sim *w)
{
    char drop[80], make[200];
    snprintf(drop, sizeof drop, "DROP TABLE IF EXISTS %s", w->on->effects);
    snprintf(make, sizeof make, "CREATE TABLE %s (at %s, handler int, consumer int, n int)",
             w->on->effects, w->on->counter);
    if (w->on->run(w->st, drop) != 0 || w->on->run(w->st, make) != 0)
        sim_fail(w, "the application's table cannot be created");
}

int effect_put(struct sim *w, struct store *tx, int handler, int consumer, int n)
{
    char sql[200];
    snprintf(sql, sizeof sql, "INSERT INTO %s (handler, consumer, n) VALUES (%d, %d, %d)",
             w->on->effects, handler, consumer, n);
    return w->on->run(tx, sql);
}

void effect_each(struct sim *w, effect_visit *visit)
{
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT handler, consumer, n FROM %s ORDER BY at", w->on->effects);
    if (w->on->each(w, sql, visit) != 0)
        sim_fail(w, "the application's table cannot be read");
}
