/* fail.c: mapping MariaDB's errors to ours. */
#include <errmsg.h>
#include <mysqld_error.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "store/mariadb/mariadb.h"

/* Our code for an error of the server or of its client library. */
struct meaning {
    unsigned native;
    enum err_code code;
    enum retry_class retry_class;
};

static const struct meaning meanings[] = {
    {ER_LOCK_DEADLOCK, ERR_BUSY, CLASS_RETRY},
    {ER_LOCK_WAIT_TIMEOUT, ERR_BUSY, CLASS_RETRY},
    {ER_CHECKREAD, ERR_BUSY, CLASS_RETRY},
    {ER_STATEMENT_TIMEOUT, ERR_BUSY, CLASS_RETRY},
    {ER_QUERY_INTERRUPTED, ERR_BUSY, CLASS_RETRY},
    {ER_CON_COUNT_ERROR, ERR_UNAVAILABLE, CLASS_RETRY},
    {ER_TOO_MANY_USER_CONNECTIONS, ERR_UNAVAILABLE, CLASS_RETRY},
    {ER_USER_LIMIT_REACHED, ERR_UNAVAILABLE, CLASS_RETRY},
    {ER_SERVER_SHUTDOWN, ERR_UNAVAILABLE, CLASS_RETRY},
    {ER_NORMAL_SHUTDOWN, ERR_UNAVAILABLE, CLASS_RETRY},
    {ER_CONNECTION_KILLED, ERR_UNAVAILABLE, CLASS_RETRY},
    {ER_NEW_ABORTING_CONNECTION, ERR_UNAVAILABLE, CLASS_RETRY},
    {ER_DISK_FULL, ERR_FULL, CLASS_RETRY},
    {ER_RECORD_FILE_FULL, ERR_FULL, CLASS_RETRY},
    {ER_OPTION_PREVENTS_STATEMENT, ERR_READONLY, CLASS_RETRY},
    {ER_READ_ONLY_MODE, ERR_READONLY, CLASS_RETRY},
    {ER_OPEN_AS_READONLY, ERR_READONLY, CLASS_RETRY},
    {ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ERR_READONLY, CLASS_RETRY},
    {ER_TABLEACCESS_DENIED_ERROR, ERR_READONLY, CLASS_FATAL},
    {ER_COLUMNACCESS_DENIED_ERROR, ERR_READONLY, CLASS_FATAL},
    {ER_PROCACCESS_DENIED_ERROR, ERR_READONLY, CLASS_FATAL},
    {ER_SPECIFIC_ACCESS_DENIED_ERROR, ERR_READONLY, CLASS_FATAL},
    {ER_ACCESS_DENIED_ERROR, ERR_CONFIG, CLASS_RETRY},
    {ER_ACCESS_DENIED_NO_PASSWORD_ERROR, ERR_CONFIG, CLASS_RETRY},
    {ER_DBACCESS_DENIED_ERROR, ERR_CONFIG, CLASS_RETRY},
    {ER_BAD_DB_ERROR, ERR_CONFIG, CLASS_RETRY},
    {ER_NO_SUCH_TABLE, ERR_NOTOURS, CLASS_FATAL},
    {ER_SP_DOES_NOT_EXIST, ERR_NOTOURS, CLASS_FATAL},
    {ER_BAD_FIELD_ERROR, ERR_NEWER, CLASS_FATAL},
    {ER_CONSTRAINT_FAILED, ERR_INVALID, CLASS_REJECT},
    {ER_BAD_NULL_ERROR, ERR_INVALID, CLASS_REJECT},
    {ER_DATA_TOO_LONG, ERR_INVALID, CLASS_REJECT},
    {ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, ERR_INVALID, CLASS_REJECT},
    {ER_NET_PACKET_TOO_LARGE, ERR_INVALID, CLASS_REJECT},
    {CR_NET_PACKET_TOO_LARGE, ERR_INVALID, CLASS_REJECT},
    {ER_TOO_BIG_ROWSIZE, ERR_INVALID, CLASS_REJECT},
    {ER_DUP_ENTRY, ERR_CONFLICT, CLASS_RETRY},
    {ER_BINLOG_STMT_MODE_AND_ROW_ENGINE, ERR_CONFIG, CLASS_RETRY},
    {ER_SIGNAL_EXCEPTION, ERR_CONFLICT, CLASS_RETRY},
    {ER_PARSE_ERROR, ERR_INTERNAL, CLASS_FATAL},
    {CR_OUT_OF_MEMORY, ERR_NOMEM, CLASS_RETRY},
    {ER_OUTOFMEMORY, ERR_NOMEM, CLASS_RETRY},
};

bool mdb_is_lost(unsigned code)
{
    switch (code) {
    case CR_SERVER_GONE_ERROR:
    case CR_SERVER_LOST:
    case CR_COMMANDS_OUT_OF_SYNC:
    case CR_MALFORMED_PACKET:
    case ER_SERVER_SHUTDOWN:
    case ER_NORMAL_SHUTDOWN:
    case ER_CONNECTION_KILLED:
    case ER_NEW_ABORTING_CONNECTION: return true;
    default: return false;
    }
}

/* Returns advice for errors whose message has none. */
static const char *advice_for(unsigned native)
{
    switch (native) {
    case ER_NO_SUCH_TABLE:
    case ER_SP_DOES_NOT_EXIST: return "; create an outbox with `outbox init`";
    case ER_BAD_FIELD_ERROR: return "; upgrade the outbox with `outbox migrate up`";
    case ER_LOCK_DEADLOCK:
    case ER_LOCK_WAIT_TIMEOUT: return "; try again";
    case ER_NET_PACKET_TOO_LARGE:
    case CR_NET_PACKET_TOO_LARGE: return "; raise max_allowed_packet on the server";
    case ER_OPTION_PREVENTS_STATEMENT:
    case ER_READ_ONLY_MODE: return "; if the server is a read-only replica, use the primary";
    case ER_BINLOG_STMT_MODE_AND_ROW_ENGINE:
        return "; set binlog_format to ROW or MIXED on the server";
    default: return "";
    }
}

bool mdb_is_elsewhere(unsigned code)
{
    return code == ER_OPTION_PREVENTS_STATEMENT || code == ER_READ_ONLY_MODE;
}

int mdb_fail_since(const struct mdb_store *st, MYSQL *db, int64_t since, struct error *err)
{
    char limit[32];
    int64_t waited = (clock_mono(&clock_system) - since) / MS_NS;
    int64_t most = mdb_answer_seconds(st) * 1000;
    unsigned native = mysql_errno(db);
    bool cut_off = native == CR_SERVER_LOST || native == CR_CONN_HOST_ERROR;
    bool silent = cut_off && most > 0 && waited >= most - most / 10;
    if (!silent)
        return mdb_fail(st, db, err);
    text_duration_show(most, limit);
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, (int)native,
                     "%s: the server has not answered for %s", st->base.shown, limit);
}

int mdb_fail(const struct mdb_store *st, MYSQL *db, struct error *err)
{
    unsigned native = db ? mysql_errno(db) : CR_OUT_OF_MEMORY;
    const char *said = db ? mysql_error(db) : "out of memory";
    bool clients = native >= CR_MIN_ERROR && native <= CR_MAX_ERROR;
    struct meaning m = {native, clients ? ERR_UNAVAILABLE : ERR_INTERNAL, CLASS_RETRY};
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].native == native)
            m = meanings[i];
    if (m.code == ERR_NOMEM)
        return err_nomem(err);
    return err_class(err, m.code, m.retry_class, (int)native, "%s: %.300s%s", st->base.shown, said,
                     advice_for(native));
}
