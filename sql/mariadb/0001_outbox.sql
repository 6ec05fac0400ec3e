-- The outbox in a MariaDB database. It shares the database with the application's own tables,
-- because an event commits with the application's data. Times are milliseconds since 1970.
--
-- To change the schema before the first release, edit this file. After it, never edit a released
-- migration: add a file 0002_*.sql that alters the tables, list it in meson.build beside this one,
-- and raise MDB_SCHEMA_VERSION, which init writes into outbox_meta. MariaDB commits each DDL
-- statement implicitly, so each one here can be run again: the next `outbox init` finishes an
-- interrupted migration. Triggers, procedures and views are in functions.sql, and init replaces
-- them.
--
-- Texts compare byte by byte (utf8mb4_nopad_bin): in MariaDB's other collations 'a' = 'a ', or
-- letters with and without an accent are equal. Columns are one character longer than their limit,
-- so that a value truncated by a session without strict mode still exceeds it.

CREATE TABLE IF NOT EXISTS outbox_meta (
    name  VARCHAR(63) NOT NULL PRIMARY KEY,
    value VARCHAR(255) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Events are inserted once, and trimmed from the old end. nr identifies an event and its place in
-- the table, not its order, which outbox_order records. Programs in any language may emit with a
-- plain
--    INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES (...)
-- The id is a UUIDv7: the time, then 24 bits of a counter of the server, so that ids grow within a
-- millisecond. Only an adopted row keeps an id of another kind, which headers name as source_id.
-- Keys are indexed in descending order, so that NULLs come last: an INSERT that meets an existing
-- key locks the gap before it; if new NULLs went there, every producer without a key would wait for
-- that transaction. A refused producer sees the constraint's name, so the name states the column
-- and the limit.
CREATE TABLE IF NOT EXISTS outbox_event (
    nr              BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT (LOWER(CONCAT(
                        INSERT(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000), 12, '0'), 9, 0, '-'),
                        '-7', INSERT(LPAD(HEX(UUID_SHORT() & 16777215), 6, '0'), 4, 0, '-8'), '-', HEX(RANDOM_BYTES(6))))),
    type            VARCHAR(256) NOT NULL,
    aggregate_type  VARCHAR(1025),
    aggregate_id    VARCHAR(1025),
    version         BIGINT,
    payload         LONGTEXT NOT NULL DEFAULT 'null',
    headers         MEDIUMTEXT,
    tenant          VARCHAR(1025),
    not_before      BIGINT,
    created_at      BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000),
    idempotency_key VARBINARY(1025),
    UNIQUE KEY id (id),
    UNIQUE KEY idempotency_key (idempotency_key DESC),
    CONSTRAINT `id: a UUIDv7 in 36 characters (an adopted row keeps its UUID)`
        CHECK (id REGEXP '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' AND (id REGEXP '^.{14}7.{4}[89abAB]'
            OR JSON_VALUE(headers, '$.source_id') <=> id)),
    CONSTRAINT `type: 1 to 255 bytes, no white space, no control character`
        CHECK (OCTET_LENGTH(type) BETWEEN 1 AND 255 AND type NOT REGEXP
            '[\\x{0}-\\x{20}\\x{7f}-\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}]'),
    CONSTRAINT `aggregate_type: 1 to 1024 bytes, no '/', no control character`
        CHECK (OCTET_LENGTH(aggregate_type) BETWEEN 1 AND 1024 AND aggregate_type NOT REGEXP '[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}/]'),
    CONSTRAINT `aggregate_id: 1 to 1024 bytes, no control character`
        CHECK (OCTET_LENGTH(aggregate_id) BETWEEN 1 AND 1024 AND aggregate_id NOT REGEXP '[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}]'),
    CONSTRAINT `aggregate_type and aggregate_id: both or neither`
        CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL)),
    CONSTRAINT `payload: JSON, nested at most 31 deep, at most 64 MiB`
        CHECK (JSON_VALID(payload) AND OCTET_LENGTH(payload) <= 67108864),
    CONSTRAINT `headers: an object of at most 64 strings, at most 64 KiB`
        CHECK (headers IS NULL OR JSON_VALID(headers) AND JSON_TYPE(headers) = 'OBJECT' AND OCTET_LENGTH(headers) <= 65536
            AND JSON_LENGTH(headers) <= 64 AND (JSON_LENGTH(headers) = 0 OR JSON_COMPACT(JSON_EXTRACT(headers, '$.*')) REGEXP
                '^\\[(?:"[^"\\\\]*+(?:\\\\.[^"\\\\]*+)*+",?)*+\\]$')),
    CONSTRAINT `tenant: 1 to 1024 bytes, no control character`
        CHECK (OCTET_LENGTH(tenant) BETWEEN 1 AND 1024 AND tenant NOT REGEXP '[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}]'),
    CONSTRAINT `not_before: milliseconds, from 1970 to ten years ahead`
        CHECK (not_before BETWEEN 0 AND created_at + 315619200000),
    CONSTRAINT `created_at: milliseconds, from 1970 to 9999`
        CHECK (created_at BETWEEN 0 AND 253402300799999),
    CONSTRAINT `idempotency_key: 1 to 1024 bytes, no control character`
        CHECK (idempotency_key IS NULL OR OCTET_LENGTH(idempotency_key) BETWEEN 1 AND 1024
            AND idempotency_key = CAST(CONVERT(idempotency_key USING utf8mb4) AS BINARY)
            AND CONVERT(idempotency_key USING utf8mb4) NOT REGEXP '[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}]')
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Always empty. Because it refers to events, the server refuses TRUNCATE, which would run no
-- trigger (see outbox_event_deleted in functions.sql).
CREATE TABLE IF NOT EXISTS outbox_guard (
    nr BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    CONSTRAINT `events are insert-only: outbox trim deletes old ones` FOREIGN KEY (nr) REFERENCES outbox_event (nr)
) ENGINE = InnoDB;

-- A marker for each event that has no seq yet, written by a trigger in the producer's transaction.
-- marker is the order of the inserts. nr is not: the server may assign the numbers of all rows of a
-- statement in advance, or a row's number before the row waits for a lock. The trigger runs when
-- the row is in the table, and inserts one row, so this number is assigned then, in every
-- innodb_autoinc_lock_mode.
CREATE TABLE IF NOT EXISTS outbox_fresh (
    marker BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    nr     BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- The order in which events are handed out. The session that locks the row of outbox_sequencer
-- assigns a seq to each marker that it sees, in their order, and deletes them. If A was committed
-- before B was inserted, A's marker is lower, and a session that sees B sees A: so A.seq < B.seq.
-- An event that commits late is assigned a late seq, and a seq never changes: no event appears
-- before those already read.
CREATE TABLE IF NOT EXISTS outbox_order (
    seq    BIGINT NOT NULL PRIMARY KEY,
    nr     BIGINT UNSIGNED NOT NULL,
    marker BIGINT UNSIGNED NOT NULL,
    UNIQUE KEY nr (nr)
) ENGINE = InnoDB;

-- One row. next: the seq of the next event. news: counts changes that relays have to notice.
CREATE TABLE IF NOT EXISTS outbox_sequencer (
    one  TINYINT NOT NULL PRIMARY KEY,
    next BIGINT NOT NULL,
    news BIGINT UNSIGNED NOT NULL DEFAULT 0
) ENGINE = InnoDB;
INSERT IGNORE INTO outbox_sequencer (one, next) VALUES (1, 1);

CREATE TABLE IF NOT EXISTS outbox_consumer (
    name       VARCHAR(63) NOT NULL PRIMARY KEY,
    events     TEXT NOT NULL,      -- type patterns, '' for all
    predicate  TEXT NOT NULL,      -- on the payload, '' for none
    ordering   VARCHAR(6) NOT NULL CHECK (ordering IN ('none', 'key', 'global')),
    lanes      INT NOT NULL,
    retry      TEXT NOT NULL,
    paused     TINYINT NOT NULL DEFAULT 0,
    epoch      BIGINT NOT NULL DEFAULT 0,      -- grows with every claim: the fence
    delivered  BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    start      BIGINT NOT NULL,                -- events up to here came before its start
    report     TEXT,                           -- the last report from its relay
    report_at  BIGINT,
    parked_stamp BIGINT NOT NULL DEFAULT 0     -- changes whenever events are parked
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Every event up to position was handed out: it is in a claim, parked, dead, or delivered.
CREATE TABLE IF NOT EXISTS outbox_lane (
    consumer VARCHAR(63) NOT NULL,
    lane     INT NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (consumer, lane)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- A lease: the events of (from_seq, to_seq] in that lane, or the parked events that carry this epoch.
CREATE TABLE IF NOT EXISTS outbox_claim (
    consumer     VARCHAR(63) NOT NULL,
    epoch        BIGINT NOT NULL,
    lane         INT NOT NULL,
    parked       TINYINT NOT NULL,
    from_seq     BIGINT NOT NULL,
    to_seq       BIGINT NOT NULL,
    owner        VARCHAR(255) NOT NULL,
    locked_until BIGINT NOT NULL,
    lease        BIGINT NOT NULL,           -- in ms: locked_until is never further ahead, even if the clock was wrong
    blamed       TINYINT NOT NULL DEFAULT 0, -- if the worker vanishes, its only event is charged an attempt
    boot         BIGINT,                    -- of the owner's clock, see SQLite; NULL: leases use the server's clock
    ahead        BIGINT NOT NULL DEFAULT 0, -- likewise; 0
    PRIMARY KEY (consumer, epoch)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Events that wait: for a retry, for their time, or behind an event of their own key (due_at IS NULL).
CREATE TABLE IF NOT EXISTS outbox_parked (
    consumer      VARCHAR(63) NOT NULL,
    seq           BIGINT NOT NULL,
    `key`         BIGINT NOT NULL,              -- of the order; 0: the event is not ordered
    attempts      INT NOT NULL,
    due_at        BIGINT,
    wait          BIGINT NOT NULL DEFAULT 0,    -- the requested wait: due_at is never further ahead
    crashes       INT NOT NULL DEFAULT 0,       -- workers that vanished while delivering it, since its last answer
    `delayed`     TINYINT NOT NULL DEFAULT 0,   -- waits for its not_before
    claim         BIGINT,                       -- epoch of the claim that holds it
    error         TEXT,
    failed_at     BIGINT,
    failing_since BIGINT,
    proven        TINYINT NOT NULL DEFAULT 0,   -- the event is known to be at fault
    PRIMARY KEY (consumer, seq),
    KEY due (consumer, claim, due_at, seq),
    KEY by_key (consumer, `key`, seq)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Dead letters: a full copy of the event, so that trimming does not affect them.
CREATE TABLE IF NOT EXISTS outbox_dead (
    consumer        VARCHAR(63) NOT NULL,
    seq             BIGINT NOT NULL,
    id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    type            VARCHAR(256) NOT NULL,
    aggregate_type  VARCHAR(1025),
    aggregate_id    VARCHAR(1025),
    version         BIGINT,
    payload         LONGTEXT NOT NULL,
    headers         MEDIUMTEXT,
    tenant          VARCHAR(1025),
    not_before      BIGINT,
    created_at      BIGINT NOT NULL,
    idempotency_key VARBINARY(1025),
    attempts        INT NOT NULL,
    error           TEXT,
    dead_at         BIGINT NOT NULL,
    retrying        TINYINT NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, seq)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- The inbox: the events that a handler has handled.
CREATE TABLE IF NOT EXISTS outbox_handled (
    handler VARBINARY(1025) NOT NULL,
    `key`   VARBINARY(1025) NOT NULL,
    hash    BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (handler, `key`),
    KEY at (at)
) ENGINE = InnoDB;

-- Optional record of deliveries, with the sink's own id.
CREATE TABLE IF NOT EXISTS outbox_receipt (
    consumer VARCHAR(63) NOT NULL,
    seq      BIGINT NOT NULL,
    event_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sink_id  TEXT,
    at       BIGINT NOT NULL,
    PRIMARY KEY (consumer, seq),
    KEY at (at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- High-water marks: the last id that a consumer has written to each stream.
CREATE TABLE IF NOT EXISTS outbox_mark (
    stream   VARBINARY(1025) NOT NULL,
    consumer VARCHAR(63) NOT NULL,
    hi       BIGINT NOT NULL,
    lo       BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    PRIMARY KEY (stream, consumer)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- All settings that a consumer has had since the first change; the highest generation is in force.
CREATE TABLE IF NOT EXISTS outbox_setting (
    consumer   VARCHAR(63) NOT NULL,
    generation INT NOT NULL,
    events     TEXT NOT NULL,
    predicate  TEXT NOT NULL,
    ordering   VARCHAR(6) NOT NULL,
    lanes      INT NOT NULL,
    since      BIGINT NOT NULL,
    by_whom    TEXT,               -- NULL: not recorded
    PRIMARY KEY (consumer, generation)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- How individual events ended for a consumer, where positions and filters cannot tell.
CREATE TABLE IF NOT EXISTS outbox_ended (
    seq      BIGINT NOT NULL,
    consumer VARCHAR(63) NOT NULL,
    state    VARCHAR(12) NOT NULL CHECK (state IN ('dropped', 'skipped', 'delivered')),
    PRIMARY KEY (seq, consumer)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Former filters of a consumer, as in the schema for SQLite.
CREATE TABLE IF NOT EXISTS outbox_former_filter (
    consumer  VARCHAR(63) NOT NULL,
    n         BIGINT NOT NULL,
    lane      INT NOT NULL,
    lanes     INT NOT NULL,
    position  BIGINT NOT NULL,
    low       BIGINT NOT NULL,
    high      BIGINT NOT NULL,
    epoch     BIGINT NOT NULL,
    events    TEXT NOT NULL,
    predicate TEXT NOT NULL,
    PRIMARY KEY (consumer, n, lane)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Samples record when a consumer was done with every event up to seq, as in SQLite.
CREATE TABLE IF NOT EXISTS outbox_passed (
    consumer VARCHAR(63) NOT NULL,
    seq      BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    PRIMARY KEY (consumer, seq)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- ---- adopted tables ----

-- Tables of the application whose rows become events, by a trigger. The trigger is created first,
-- and ignores rows until the row here is active. It reads that row with a lock until the end of its
-- transaction: so the session that activates it sees every row that was inserted before, committed,
-- and every later row becomes an event.
CREATE TABLE IF NOT EXISTS outbox_adopted (
    source  VARCHAR(64) NOT NULL PRIMARY KEY,
    mapping TEXT NOT NULL,              -- the column of each field, as JSON
    active  TINYINT NOT NULL DEFAULT 0,
    at      BIGINT                      -- when it first became active
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Adopted tables whose rows are marked as processed once a consumer has received them. This is a
-- separate table because producers may lock their row of outbox_adopted for any length of time, and
-- a turn records here why marking failed.
CREATE TABLE IF NOT EXISTS outbox_marking (
    source   VARCHAR(64) NOT NULL PRIMARY KEY,
    consumer VARCHAR(63) NOT NULL,
    mark     VARCHAR(64) NOT NULL,      -- the column that is set; '': marking is about to end
    stamp    VARCHAR(16) NOT NULL,      -- the format of its value, see stamps in src/store/mariadb/adopt_mark.c
    row_key  VARCHAR(64) NOT NULL,      -- the column that identifies a row
    key_type VARCHAR(64) NOT NULL,      -- the data type of that column
    error    TEXT,                      -- why rows are not marked
    error_at BIGINT,                    -- since when
    KEY consumer (consumer)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Which row of a marked table became which event, until the row is marked or the event is trimmed.
CREATE TABLE IF NOT EXISTS outbox_adopted_row (
    nr     BIGINT UNSIGNED NOT NULL,    -- of the event
    source VARCHAR(64) NOT NULL,
    value  LONGTEXT NOT NULL,           -- of the row's key
    had    TINYINT NOT NULL DEFAULT 0,  -- the consumer has received it, and it is not marked yet
    PRIMARY KEY (nr, source),
    KEY had (source, had, nr)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- identity: copies of this outbox share it; no other outbox has it.
INSERT IGNORE INTO outbox_meta (name, value) VALUES ('trim', ''), ('identity', LOWER(HEX(RANDOM_BYTES(16))));
