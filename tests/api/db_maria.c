#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../contract/maria.h"
#include "../contract/store.h"
#include "db.h"

const bool db_one_writer = false, db_goes_on = true, db_defers = false;
static struct test_clock own_clock;
struct test_clock *store_now_at = &own_clock;

/* SQL of the tests and its MariaDB equivalent. */
static const struct {
    const char *word, *meant;
} words[] = {{"key", "`key`"}, {"text", "char"}};

static bool is_part(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* meant_by returns the replacement of the word that starts at `sql`; NULL: itself. */
static const char *meant_by(const char *sql, size_t n)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].word) == n && strncmp(sql, words[i].word, n) == 0)
            return words[i].meant;
    return NULL;
}

/* expand replaces each @ by outbox_, and translates other words for MariaDB. */
static const char *expand(const char *sql, char *out, size_t size)
{
    FILE *to = fmemopen(out, size, "w");
    while (to && *sql) {
        size_t n = 0;
        while (is_part(sql[n]))
            n++;
        const char *meant = meant_by(sql, n);
        if (*sql == '@')
            fputs("outbox_", to);
        else if (meant)
            fputs(meant, to);
        else
            fwrite(sql, 1, n ? n : 1, to);
        sql += n ? n : 1;
    }
    if (to)
        fclose(to);
    return out;
}

outbox *db_open(const outbox_options *o)
{
    outbox *ob;
    outbox_error err;
    if (outbox_open(maria_url(), o, &ob, &err) != 0)
        db_give_up("open", err.text);
    return ob;
}

outbox *db_fresh(const outbox_options *o)
{
    struct store *st = maria_fresh(&(struct store_options){.create = true});
    if (!st)
        db_give_up("fresh", "no server");
    store_close(st);
    db_do("CREATE TABLE @effect (handler char(99), key char(99), at serial)");
    return db_open(o);
}

void db_clean(void)
{
    maria_clean();
}

void db_do(const char *sql)
{
    char text[1024];
    MYSQL *db = maria_connect();
    maria_do(db, "SET @outbox_change_events = 'on'");
    maria_do(db, "%s", expand(sql, text, sizeof text));
    mysql_close(db);
}

long db_number(const char *sql)
{
    char text[1024];
    MYSQL *db = maria_connect();
    long n = (long)maria_number(db, "%s", expand(sql, text, sizeof text));
    mysql_close(db);
    return n;
}

int db_tx_run(outbox_tx *tx, const char *sql)
{
    char text[1024];
    MYSQL *db = outbox_tx_mariadb(tx);
    if (!db)
        db_give_up(sql, "no transaction");
    return maria_try(db, "%s", expand(sql, text, sizeof text)) == 0 ? 0 : -1;
}

int db_once(outbox *ob, const char *key, const char *payload, bool keep, int *ret_first,
            outbox_error *err)
{
    MYSQL *db = maria_connect();
    maria_do(db, "BEGIN");
    int r = outbox_handle_once_mariadb(ob, db, "queue", key, payload, 0, ret_first, err);
    if (r == 0 && *ret_first)
        maria_do(db, "INSERT INTO outbox_effect (handler, `key`) VALUES ('queue', '%s')", key);
    maria_do(db, "%s", r == 0 && keep ? "COMMIT" : "ROLLBACK");
    mysql_close(db);
    return r;
}

int db_once_bare(outbox *ob, const char *key, int *ret_first, outbox_error *err)
{
    MYSQL *db = maria_connect();
    int r = outbox_handle_once_mariadb(ob, db, "queue", key, NULL, 0, ret_first, err);
    mysql_close(db);
    return r;
}
