/* statement.h: what the files that send statements and read their results share (command.c,
 * statement.c, search_path.c, result.c). Everybody else calls what postgres.h declares. */
#ifndef STORE_POSTGRES_STATEMENT_H
#define STORE_POSTGRES_STATEMENT_H

#include "store/postgres/postgres.h"

/* ---- result.c ---- */

/* pg_next_result is PQgetResult with a limit: if nothing comes for answer_ms, the connection is
 * given up. pg_result adds to it the end of a pipeline. */
PGresult *pg_next_result(struct pg_store *st, PGconn *db);
/* pg_went_well says whether a result is rows, or a command that was carried out. */
bool pg_went_well(const PGresult *r);

/* ---- search_path.c ---- */

/* Our statements write most names without a schema, and mean the server's own. If the search_path
 * were somebody else's, whoever may create objects there could have them run in place of the
 * server's, with our rights. There are three cases:
 *
 *   PG_PATH_IS_OURS     a connection of our own: set_up in connect.c has set the path. A statement
 *                       that begins with PG_NAMED needs no path either.
 *   PG_PATH_CHANGED     a transaction that we share with the application: the path is changed for
 *                       the statement and put back after it.
 *   PG_PATH_SENT_ALONG  behind a pooler: each statement brings its path along. */
enum pg_path { PG_PATH_IS_OURS, PG_PATH_CHANGED, PG_PATH_SENT_ALONG };

#define PG_SET_PATH "pg_catalog.set_config('search_path', '" PG_PATH "', true)"

enum pg_path pg_path_for(const struct pg_store *st, enum pg_link link, const char *sql);
/* pg_path_change sets our search_path on the main connection, and notes the application's. */
int pg_path_change(struct pg_store *st, struct error *err);
/* pg_path_restore puts the application's back, if pg_path_change changed it. In a transaction that
 * has failed this is impossible, and the end of the transaction does it. */
void pg_path_restore(struct pg_store *st);

#endif
