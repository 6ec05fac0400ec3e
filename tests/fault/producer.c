/* producer.c: an application that is killed repeatedly and keeps a diary of its transactions.
 *
 *     fault_producer DATABASE DIARY NAME SEED
 *
 * Until SIGTERM it writes transactions: a row in its own table ledger, and one to three events with
 * the same content. Before and after each it writes a line into DIARY and syncs it: "i N COUNT"
 * (intends transaction N of COUNT events), then "c N COUNT" (committed) or "r N COUNT" (rolled
 * back, on purpose). The diary states the outcome of every transaction; only a bare "i" allows
 * either outcome. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "outbox.h"

#define KEYS 12
#define PAUSE_US 15000

struct producer {
    sqlite3 *db;
    outbox *ob;
    int diary;
    const char *name;
    unsigned seed;
};

static volatile sig_atomic_t stopping;

static void on_signal(int number)
{
    (void)number;
    stopping = 1;
}

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "producer: %s: %s\n", what, why);
    exit(1);
}

static void sql(struct producer *p, const char *text)
{
    if (sqlite3_exec(p->db, text, NULL, NULL, NULL) != SQLITE_OK)
        die(text, sqlite3_errmsg(p->db));
}

static void note(struct producer *p, const char *what, int n, int count)
{
    char line[64];
    int size = snprintf(line, sizeof line, "%s %d %d\n", what, n, count);
    if (write(p->diary, line, (size_t)size) != size || fdatasync(p->diary) != 0)
        die("diary", strerror(errno));
}

static void tell(struct producer *p, int n, int i)
{
    char key[16], payload[160];
    outbox_error err;
    outbox_message m = OUTBOX_MESSAGE_INIT;
    snprintf(key, sizeof key, "%d", rand_r(&p->seed) % KEYS);
    snprintf(payload, sizeof payload, "{\"producer\":\"%s\",\"n\":%d,\"i\":%d}", p->name, n, i);
    m.type = "ledger.entry";
    m.aggregate_type = "account";
    m.aggregate_id = key;
    m.payload = payload;
    if (outbox_emit_sqlite(p->ob, p->db, &m, NULL, &err) != 0)
        die("emit", err.text);
}

static void transaction(struct producer *p, int n)
{
    char insert[160];
    int count = 1 + rand_r(&p->seed) % 3, keep = rand_r(&p->seed) % 6 != 0;
    note(p, "i", n, count);
    sql(p, "BEGIN IMMEDIATE");
    snprintf(insert, sizeof insert, "INSERT INTO ledger VALUES ('%s', %d, %d)", p->name, n, count);
    sql(p, insert);
    for (int i = 0; i < count; i++)
        tell(p, n, i);
    sql(p, keep ? "COMMIT" : "ROLLBACK");
    note(p, keep ? "c" : "r", n, count);
}

static void producer_open(struct producer *p, const char *path, const char *diary)
{
    outbox_error err;
    char url[4096];
    snprintf(url, sizeof url, "sqlite:%s", path);
    if (outbox_open(url, NULL, &p->ob, &err) != 0)
        die(path, err.text);
    if (sqlite3_open(path, &p->db) != SQLITE_OK)
        die(path, sqlite3_errmsg(p->db));
    sqlite3_busy_timeout(p->db, 60000);
    sql(p, "PRAGMA synchronous = FULL");
    p->diary = open(diary, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (p->diary < 0)
        die(diary, strerror(errno));
}

int main(int argc, char **argv)
{
    if (argc != 5)
        die("usage", "fault_producer DATABASE DIARY NAME SEED");
    struct producer p = {.name = argv[3], .seed = (unsigned)strtoul(argv[4], NULL, 10)};
    signal(SIGTERM, on_signal);
    producer_open(&p, argv[1], argv[2]);
    for (int n = 1; !stopping; n++) {
        transaction(&p, n);
        usleep((useconds_t)(rand_r(&p.seed) % (2 * PAUSE_US)));
    }
    sqlite3_close(p.db);
    outbox_close(p.ob);
    close(p.diary);
    return 0;
}
