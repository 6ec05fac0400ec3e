-- adopt.sql: tables of the application whose rows become events. Statements that name such a table
-- are built in extra/adopt/sqlite.c.

-- find_table: the table's name, and why it cannot have a trigger.
SELECT name,
       CASE WHEN type = 'view' THEN 'it is a view'
            WHEN sql LIKE 'CREATE VIRTUAL%' THEN 'it is a virtual table' END
  FROM main.sqlite_master
 WHERE type IN ('table', 'view') AND name = :name COLLATE NOCASE;

-- table_columns: the columns in their order.
SELECT name, type FROM pragma_table_info(:source, 'main') ORDER BY cid;

-- without_rowid: such a table cannot be sorted by its rowid.
SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = :source;

-- is_unique: whether this column is the rowid, or a unique index has it as its only one.
SELECT EXISTS (SELECT 1 FROM pragma_table_info(:source, 'main')
                WHERE pk AND name = :name AND type = 'INTEGER' COLLATE NOCASE
                  AND (SELECT sum(pk > 0) FROM pragma_table_info(:source, 'main')) = 1)
    OR EXISTS (SELECT 1 FROM pragma_index_list(:source, 'main') i
                WHERE i."unique" AND NOT i.partial
                  AND (SELECT count(*) = 1 AND min(c.name) = :name
                         FROM pragma_index_info(i.name, 'main') c));

-- is_adopted: a table is adopted while it has our trigger.
SELECT 1 FROM main.sqlite_master WHERE type = 'trigger' AND name = :trigger;

-- was_adopted: whether the table was ever adopted.
SELECT 1 FROM outbox_adopted WHERE source = :source;

-- adopted_alike: whether adopting it again would change anything. Without a mark in the request,
-- the present one stays.
SELECT mapping = :mapping AND (:mark IS NULL OR (mark IS :mark AND consumer IS :consumer))
  FROM outbox_adopted
 WHERE source = :source;

-- put_adopted (source text, mapping text, mark text, consumer text, key text, stamp text, now int):
-- records how the table was adopted. Without a new mark the present one stays.
INSERT INTO outbox_adopted (source, mapping, mark, consumer, key, stamp, at)
VALUES (:source, :mapping, :mark, :consumer, :key, :stamp, :now)
    ON CONFLICT (source) DO UPDATE
   SET mapping = :mapping, mark = coalesce(:mark, mark), consumer = coalesce(:consumer, consumer),
       key = :key, stamp = coalesce(:stamp, stamp), at = :now;

-- is_marked: whether rows of the table are marked once they are delivered.
SELECT mark IS NOT NULL FROM outbox_adopted WHERE source = :source;

-- forget_mark: rows are no longer marked.
UPDATE outbox_adopted SET mark = NULL, consumer = NULL, stamp = NULL WHERE source = :source;

-- event_known (id str): a row whose event exists already is not copied again.
SELECT 1 FROM outbox_event WHERE id = :id;

-- @copied_columns@: the values that an event copies from a row, besides an id that is a UUID.
type, payload, created_at, headers, aggregate_type, aggregate_id, tenant;

-- note_row (id text, source text, row text): remembers which row an event came from, so that it can
-- be marked. row is bound by hand, because a key may have any type.
INSERT OR IGNORE INTO outbox_adopted_row (event_id, source, row) VALUES (:id, :source, :row);

-- marked_tables: tables whose rows this consumer's deliveries mark, except those that were dropped.
SELECT a.source, a.mark, a.key, a.stamp FROM outbox_adopted a
 WHERE a.consumer = :consumer AND a.mark IS NOT NULL
   AND EXISTS (SELECT 1 FROM main.sqlite_master m WHERE m.type = 'table' AND m.name = a.source);

-- forget_marked: their rows are marked now. ids is a JSON array of event ids.
DELETE FROM outbox_adopted_row WHERE event_id IN (SELECT value FROM json_each(:ids));
