/* lite.h: an outbox in a separate SQLite file, or in memory, for the tests of the SQLite store. */
#ifndef TESTS_CONTRACT_LITE_H
#define TESTS_CONTRACT_LITE_H

#include <sqlite3.h>

#include "store/store.h"
#include "store_impl.h"

#define LITE_PATH 128

/* lite_fresh creates an empty outbox in a file and opens it, lite_clean deletes the file. The other
 * two are for an outbox in memory, which leaves no file. */
struct store *lite_fresh(const struct store_options *opt);
void lite_clean(void);
struct store *lite_memory(const struct store_options *opt);
void lite_nothing(void);
bool lite_sneak(struct store *st, const char *sql);

/* lite_path names a file in the folder of the last lite_fresh; the outbox is "t.db". lite_url is
 * the outbox's URL. */
void lite_path(char out[LITE_PATH], const char *name);
void lite_url(char out[LITE_PATH + 8]);

/* lite_connect opens an application's own connection to the file. lite_do runs statements on one
 * and fails the test if they fail. lite_count returns the number that a query on the store's
 * connection yields. */
sqlite3 *lite_connect(void);
void lite_do(sqlite3 *db, const char *sql);
/* lite_force is lite_do for statements that change or delete events, which are insert-only. */
void lite_force(sqlite3 *db, const char *sql);
int64_t lite_count(struct store *st, const char *sql);

/* lite_emit emits one event through db, or by the store's own connection if db is NULL. */
int lite_emit(struct store *st, sqlite3 *db, const char *key, struct error *err);

/* lite_take claims up to ten events of consumer c into g->b. lite_taken returns their types, "" for
 * none. If `told` is not NULL, the turn before must have failed with that text in its message: the
 * store reports once that the database has moved. */
int lite_take(struct store_rig *g, struct error *err);
const char *lite_taken(struct store_rig *g, const char *told);

#endif
