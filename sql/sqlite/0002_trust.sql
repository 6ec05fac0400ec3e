-- The outbox in a SQLite database, version 2: what 0.1.0 left to be assumed is checked and kept.

-- Whose fault a failure is: since when an event has failed, and whether it is known to be the event's own (others got through
-- beside it). Until it is known, a failure uses up no attempt: see src/engine/evidence.h.
ALTER TABLE outbox_parked ADD COLUMN failing_since INTEGER;
ALTER TABLE outbox_parked ADD COLUMN proven INTEGER NOT NULL DEFAULT 0;
UPDATE outbox_parked SET failing_since = failed_at WHERE failed_at IS NOT NULL;

-- Which version of the outbox the program that claims was written for. Programs of version 1 say nothing, and must stop: to them
-- a constraint that fails is a reason to try again, but an error of this kind is the end, and the path is in its text.
ALTER TABLE outbox_claim ADD COLUMN knows INTEGER;
CREATE TRIGGER outbox_claim_knows BEFORE INSERT ON outbox_claim WHEN NEW.knows IS NULL BEGIN
    SELECT json_extract('{}', CASE WHEN NEW.knows IS NULL
        THEN 'this outbox was brought up to version 2 or later; this program knows 1: update it' ELSE '$' END);
END;

-- ---- settings: what a consumer was given, and what that replaced ----

-- Every settings a consumer has had since they first changed, the newest with the highest generation: those that count. A
-- worker may not bring back what was replaced, or one that was restarted with its old file would pass over events that the
-- newer filter lets through. Rows come with the first change; of one that never changed there is nothing to remember.
CREATE TABLE outbox_setting (
    consumer   TEXT NOT NULL,
    generation INTEGER NOT NULL,
    events     TEXT NOT NULL,
    predicate  TEXT NOT NULL,
    ordering   TEXT NOT NULL,
    lanes      INTEGER NOT NULL,
    since      INTEGER NOT NULL,   -- ms
    by_whom    TEXT,               -- NULL: nobody wrote it down
    PRIMARY KEY (consumer, generation)
) WITHOUT ROWID;

-- ---- limits: what an event may be, on every way in (docs/limits.md) ----

-- A CHECK cannot be changed, so the table is made anew, with every event, its number, and the numbers given out so far. Events of
-- an older version that break a rule are taken over as they are, and stay deliverable; only times that nobody can wait for become
-- the latest there is. A constraint's name is what a producer reads when it is refused: which column, and what the limit is.
--
-- SQLite keeps any type in any column, text with NUL inside (where length() and GLOB end), and bytes that are no UTF-8: those no
-- CHECK can find, and a relay makes dead letters of them. The checks are compiled with every INSERT that is prepared, which
-- takes longer than to run them, and goes by the number of terms. So there are few, and each does much:
--   x BETWEEN ' ' AND printf('%.99s', x)   text, not empty, at most 99 bytes, no NUL: printf makes text of bytes, ends at NUL, and
--                                          cuts off what is longer, and then x is past it; and all before ' ' are control characters
--   x NOT GLOB CAST(x'...' AS TEXT)        '*[...]*' with the control characters, and '/', or white space. Types are mostly ASCII,
--                                          where white space is found sooner
--   ':"' to ',"', '{' to '[', '}' to ']'   make a JSON array of an object, if its values are strings; else, what is no JSON
--   ',"' to '},{"'                         makes as many objects of it as it has strings
DROP VIEW outbox_delivery; -- made anew below
CREATE TABLE outbox_event_2 (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x', -- UUIDv7, as in version 1, in fewer terms
                       (julianday() - 2440587.5) * 86400000 >> 16, (julianday() - 2440587.5) * 86400000 & 65535,
                       random() & 4095, random() & 16383 | 32768, random() & 281474976710655)),
    type           TEXT NOT NULL,
    aggregate_type TEXT,
    aggregate_id   TEXT,
    version        INTEGER,
    payload        TEXT NOT NULL DEFAULT 'null',
    headers        TEXT,
    tenant         TEXT,
    not_before     INTEGER,
    created_at     INTEGER NOT NULL DEFAULT (CAST((julianday() - 2440587.5) * 86400000 AS INTEGER)),
    CONSTRAINT "id: a UUID in 36 characters" CHECK (id = printf('%.36s', id) AND id GLOB
        '[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]-[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]-[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]-[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]-[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]'),
    CONSTRAINT "type: 1 to 255 bytes, no white space, no control character" CHECK (
        type BETWEEN '!' AND printf('%.255s', type) AND (type NOT GLOB '*[^!-~]*' OR type NOT GLOB
        CAST(x'2a5b012d207f2dc2a0e19a80e280802de2808ae280a8e280a9e280afe2819fe380805d2a' AS TEXT))),
    CONSTRAINT "aggregate_type: 1 to 1024 bytes, no '/', no control character" CHECK (
        aggregate_type BETWEEN ' ' AND printf('%.1024s', aggregate_type) AND aggregate_type NOT GLOB
        CAST(x'2a5b012d1f7f2dc29f2f5d2a' AS TEXT)),
    CONSTRAINT "aggregate_id: 1 to 1024 bytes, no control character" CHECK (
        aggregate_id BETWEEN ' ' AND printf('%.1024s', aggregate_id) AND aggregate_id NOT GLOB
        CAST(x'2a5b012d1f7f2dc29f5d2a' AS TEXT)),
    CONSTRAINT "aggregate_type and aggregate_id: both or neither" CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL)),
    CONSTRAINT "version: a whole number of 64 bits" CHECK (version = CAST(version AS INTEGER)),
    CONSTRAINT "payload: JSON without NUL, at most 64 MiB" CHECK (payload = printf('%.67108864s', payload) AND json_valid(payload)),
    CONSTRAINT "headers: an object of at most 64 strings, at most 64 KiB" CHECK (headers IS NULL OR
        headers = printf('%.65536s', headers) AND
        json_valid(rtrim(replace(replace(json(headers), ':"', ',"'), '{', '['), '}') || ']') AND
        json_array_length(replace(json_array(json(headers)), ',"', '},{"')) <= 64),
    CONSTRAINT "tenant: 1 to 1024 bytes, no control character" CHECK (tenant IS NULL OR
        tenant BETWEEN ' ' AND printf('%.1024s', tenant) AND tenant NOT GLOB
        CAST(x'2a5b012d1f7f2dc29f5d2a' AS TEXT)),
    CONSTRAINT "not_before: milliseconds, from 1970 to ten years ahead" CHECK (
        not_before BETWEEN 0 AND CAST(not_before AS INTEGER) AND not_before <= created_at + 315619200000),
    CONSTRAINT "created_at: milliseconds, from 1970 to 9999" CHECK (
        created_at BETWEEN 0 AND CAST(created_at AS INTEGER) AND created_at <= 253402300799999)
);
PRAGMA ignore_check_constraints = ON;
INSERT INTO outbox_event_2
SELECT seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant,
       CASE WHEN not_before IS NULL OR typeof(not_before) <> 'integer' AND CAST(not_before AS INTEGER) <= 0 THEN NULL
            ELSE min(max(CAST(not_before AS INTEGER), 0), max(min(CAST(created_at AS INTEGER), 253402300799999), 0) + 315619200000) END,
       min(max(CAST(created_at AS INTEGER), 0), CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
FROM outbox_event ORDER BY seq;
PRAGMA ignore_check_constraints = OFF;
DELETE FROM sqlite_sequence WHERE name = 'outbox_event_2';
INSERT INTO sqlite_sequence (name, seq) SELECT 'outbox_event_2', seq FROM sqlite_sequence WHERE name = 'outbox_event';
DROP TABLE outbox_event;
PRAGMA legacy_alter_table = ON; -- or a view of the application's own that names the table would be in the way
ALTER TABLE outbox_event_2 RENAME TO outbox_event;
PRAGMA legacy_alter_table = OFF;

-- Which outbox this is: a copy of it has the same, another one never.
INSERT INTO outbox_meta (name, value) VALUES ('identity', lower(hex(randomblob(16))));

-- ---- what is shown is true ----

-- Where a consumer started: events up to here came before it, and were never its own. NULL: made by 0.1.0, which did not say.
ALTER TABLE outbox_consumer ADD COLUMN start INTEGER;

-- How single events ended for a consumer, where positions and filters do not tell: a row per dropped dead letter, and the few
-- that a worker left which vanished while the filter changed. Both are rare, and the row goes with its event.
CREATE TABLE outbox_ended (
    seq      INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('dropped', 'skipped', 'delivered')),
    PRIMARY KEY (seq, consumer)
) WITHOUT ROWID;

-- A dead letter that is deleted, by whatever way, was dropped, unless it had been sent back and is being settled.
CREATE TRIGGER outbox_note_drop AFTER DELETE ON outbox_dead WHEN OLD.retrying = 0
BEGIN
    INSERT OR REPLACE INTO outbox_ended (seq, consumer, state)
    SELECT OLD.seq, OLD.consumer, 'dropped' WHERE EXISTS (SELECT 1 FROM outbox_event WHERE seq = OLD.seq);
END;

-- Filters that a consumer had, each with the position of every lane when it was replaced: what was handed out by then was judged
-- by it. n grows; of those that cover an event the first counts. low and high: the least and the greatest of the positions.
-- epoch: claims up to it were made under this filter.
CREATE TABLE outbox_former_filter (
    consumer  TEXT NOT NULL,
    n         INTEGER NOT NULL,
    lane      INTEGER NOT NULL,
    lanes     INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    low       INTEGER NOT NULL,
    high      INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    events    TEXT NOT NULL,
    predicate TEXT NOT NULL,
    PRIMARY KEY (consumer, n, lane)
) WITHOUT ROWID;

-- The state of every kept event for every consumer whose type patterns match it, or did when it was handed out. SQL alone cannot
-- look into a payload as predicates do, nor tell the lane of a key. Where it would have to, it says `unknown`: of an event that
-- a consumer with a predicate is past (delivered or skipped), and, with several lanes, of one that some lanes are past and
-- others are not, or that a claim of some lane spans. `outbox events` is exact in both.
-- An expired claim counts as none: its events are pending, or failed if they had failed before.
CREATE VIEW outbox_delivery AS
SELECT seq, event_id, type, consumer,
       CASE
           WHEN retrying = 0 THEN 'expired'
           WHEN parked AND parked_live THEN 'in-flight'
           WHEN parked_attempts > 0 OR failing_since IS NOT NULL THEN 'failed'
           WHEN parked OR seq > high THEN 'pending'
           WHEN seq <= start THEN 'before-start'
           WHEN seq > low THEN 'unknown'
           WHEN ended IS NULL AND seq > former_low THEN 'unknown'
           WHEN ended IS NULL AND NOT was_wanted THEN 'skipped'
           WHEN claim_live IS NOT NULL AND NOT lane_known THEN 'unknown'
           WHEN claim_live = 1 THEN 'in-flight'
           WHEN claim_live = 0 THEN 'pending'
           WHEN ended IS NOT NULL THEN ended
           WHEN predicate <> '' THEN 'unknown'
           ELSE 'delivered'
       END AS state,
       attempts, due_at, error
FROM (SELECT e.seq, e.id AS event_id, e.type, c.name AS consumer, c.start, d.retrying, x.state AS ended,
             p.seq IS NOT NULL AS parked, p.attempts AS parked_attempts, p.failing_since, p.due_at,
             coalesce(p.attempts, d.attempts, 0) AS attempts, coalesce(p.error, d.error) AS error,
             EXISTS (SELECT 1 FROM outbox_claim k WHERE k.consumer = c.name AND k.epoch = p.claim
                     AND k.locked_until > t.now) AS parked_live,
             c.lanes = 1 OR e.aggregate_id IS NULL AS lane_known,
             (SELECT min(l.position) FROM outbox_lane l WHERE l.consumer = c.name
              AND (e.aggregate_id IS NOT NULL OR l.lane = e.seq % c.lanes)) AS low,
             (SELECT max(l.position) FROM outbox_lane l WHERE l.consumer = c.name
              AND (e.aggregate_id IS NOT NULL OR l.lane = e.seq % c.lanes)) AS high,
             (SELECT max(k.locked_until > t.now) FROM outbox_claim k WHERE k.consumer = c.name AND k.parked = 0
              AND e.seq > k.from_seq AND e.seq <= k.to_seq
              AND (c.lanes = 1 OR e.aggregate_id IS NOT NULL OR k.lane = e.seq % c.lanes)) AS claim_live,
             h.low AS former_low, coalesce(h.predicate, c.predicate) AS predicate,
             c.events = '' OR EXISTS (
                 SELECT 1 FROM json_each('[' || replace(json_quote(c.events), ',', '","') || ']') AS w
                 WHERE e.type GLOB trim(w.value)) AS wanted,
             coalesce(h.events, c.events) = '' OR EXISTS (
                 SELECT 1 FROM json_each('[' || replace(json_quote(coalesce(h.events, c.events)), ',', '","') || ']') AS w
                 WHERE e.type GLOB trim(w.value)) AS was_wanted
      FROM outbox_event e
      CROSS JOIN outbox_consumer c
      CROSS JOIN (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS now) t
      LEFT JOIN outbox_parked p ON p.consumer = c.name AND p.seq = e.seq
      LEFT JOIN outbox_dead d ON d.consumer = c.name AND d.seq = e.seq
      LEFT JOIN outbox_ended x ON x.consumer = c.name AND x.seq = e.seq
      LEFT JOIN outbox_former_filter h ON h.consumer = c.name AND h.lane = 0 AND h.n =
                (SELECT min(g.n) FROM outbox_former_filter g WHERE g.consumer = c.name AND g.lane = 0 AND e.seq <= g.high))
WHERE wanted OR (seq <= high AND was_wanted) OR parked OR retrying IS NOT NULL OR ended IS NOT NULL;

-- The highest number a lane was handed, and the id of that event: by these it is found out that numbers began again.
ALTER TABLE outbox_lane ADD COLUMN high INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox_lane ADD COLUMN high_id TEXT;
UPDATE outbox_lane SET high = position, high_id = (SELECT id FROM outbox_event WHERE seq = position)
WHERE position <= (SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event') -- else it was told to start further ahead
   OR EXISTS (SELECT 1 FROM outbox_consumer c WHERE c.name = consumer AND c.delivered > 0);

UPDATE outbox_meta SET value = '2' WHERE name = 'schema_version';
