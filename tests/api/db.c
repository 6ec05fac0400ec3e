#include "db.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void db_give_up(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    abort();
}

int db_tx(outbox_tx *tx, const char *fmt, ...)
{
    char sql[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sql, sizeof sql, fmt, ap);
    va_end(ap);
    return db_tx_run(tx, sql);
}
