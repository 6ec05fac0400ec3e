/* backend_mariadb.c: the world on MariaDB. An event gets its number after its commit, when a relay
 * or a command polls. */
#include <stdio.h>
#include <stdlib.h>

#include "../contract/maria.h"
#include "sim.h"
#include "store/mariadb/mariadb.h"

static struct store *open_again(struct sim *w, const struct store_options *opt)
{
    (void)w;
    return maria_again(opt);
}

static int run(struct store *st, const char *sql)
{
    return maria_try(mdb_of(st)->db, "%s", sql) == 0 ? 0 : -1;
}

static int each(struct sim *w, const char *sql, effect_visit *visit)
{
    MYSQL *db = mdb_of(w->st)->db;
    MYSQL_RES *r = mysql_query(db, sql) == 0 ? mysql_store_result(db) : NULL;
    MYSQL_ROW row;
    if (!r)
        return -1;
    while ((row = mysql_fetch_row(r)))
        visit(w, atoi(row[0]), atoi(row[1]), atoi(row[2]));
    mysql_free_result(r);
    return 0;
}

/* note_number: nr counts inserts into a table that was empty. */
static void note_number(struct sim *w, int seq, int nr, int ignored)
{
    (void)ignored;
    struct fact *f = &w->fact[nr - 1];
    if (f->seq && f->seq != seq)
        sim_fail(w, "the number of event %d changed from %lld to %d", nr - 1, (long long)f->seq,
                 seq);
    if (f->told != TOLD_COMMITTED)
        sim_fail(w, "phantom: event %d, which was not committed, has number %d", nr - 1, seq);
    f->seq = seq;
    w->numbered = seq;
}

static void number(struct sim *w)
{
    char sql[100];
    snprintf(sql, sizeof sql, "SELECT seq, nr, 0 FROM outbox_order WHERE seq > %lld ORDER BY seq",
             (long long)w->numbered);
    if (each(w, sql, note_number) != 0)
        sim_fail(w, "the numbers of events cannot be read");
}

const struct backend backend_mariadb = {
    .name = "mariadb",
    .shown = " on MariaDB",
    .numbers = NUMBERED_LATER,
    .effects = "sim_effect",
    .counter = "bigint AUTO_INCREMENT PRIMARY KEY",
    .open = open_again,
    .clean = maria_clean,
    .number = number,
    .run = run,
    .each = each,
};
