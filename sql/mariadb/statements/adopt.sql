-- adopt.sql: tables of the application whose rows become events. Statements that name such a table
-- are built in extra/adopt/mariadb.c.

-- find_table: the table's name, and why it has no transactions with the outbox.
SELECT table_name,
       CASE WHEN table_type <> 'BASE TABLE' THEN CONCAT('it is a ', LOWER(table_type))
            WHEN engine = 'InnoDB' THEN NULL
            ELSE CONCAT('its engine is ', COALESCE(engine, 'unknown'),
                        ', and only InnoDB commits a row together with its event',
                        ' (ALTER TABLE ... ENGINE = InnoDB)')
       END
  FROM information_schema.tables
 WHERE table_schema = :schema AND table_name = :name;

-- table_columns: the columns in their order.
SELECT column_name, data_type FROM information_schema.columns
 WHERE table_schema = :schema AND table_name = :source ORDER BY ordinal_position;

-- is_unique: whether a unique index has this column, as a whole, as its only one.
SELECT EXISTS (SELECT 1 FROM information_schema.statistics
                WHERE table_schema = :schema AND table_name = :source AND non_unique = 0
                GROUP BY index_name
               HAVING count(*) = 1 AND min(column_name) = :name AND min(sub_part) IS NULL);

-- id_default: the default expression of an event's id. In a literal, the outbox's table name would
-- be prefixed with the database's, hence CONCAT.
SELECT column_default FROM information_schema.columns
 WHERE table_schema = :schema AND table_name = CONCAT('outbox', '_event') AND column_name = 'id';

-- is_adopted: a table is adopted while it has our trigger and that is active.
SELECT 1 FROM information_schema.triggers
 WHERE trigger_schema = :schema AND trigger_name = :trigger
   AND EXISTS (SELECT 1 FROM outbox_adopted WHERE source = :source AND active);

-- was_adopted: whether the table was ever adopted.
SELECT 1 FROM outbox_adopted WHERE source = :source AND at IS NOT NULL;

-- adopted_alike: whether adopting it again would change anything. Without a mark in the request,
-- the present one stays.
SELECT mapping = :mapping
       AND (:mark IS NULL OR EXISTS (SELECT 1 FROM outbox_marking m
                                      WHERE m.source = :source AND m.mark = :mark
                                        AND m.consumer = :consumer))
  FROM outbox_adopted WHERE source = :source;

-- prepare_adopted: its trigger ignores rows for now.
INSERT INTO outbox_adopted (source, mapping) VALUES (:source, :mapping)
    ON DUPLICATE KEY UPDATE mapping = :mapping, active = 0;

-- lock_adopted: waits for transactions that inserted into the table, and blocks new ones.
SELECT 1 FROM outbox_adopted WHERE source = :source FOR UPDATE;

-- set_adopted: from the commit on rows become events, or no longer do.
UPDATE outbox_adopted SET active = :active, at = coalesce(at, IF(:active, :now, NULL))
 WHERE source = :source;

-- set_mapping: remembers which columns its trigger reads.
UPDATE outbox_adopted SET mapping = :mapping WHERE source = :source;

-- is_marked: whether rows of the table are marked once they are delivered.
SELECT 1 FROM outbox_marking WHERE source = :source;

-- marked_by: the column by which rows are found.
SELECT row_key FROM outbox_marking WHERE source = :source;

-- put_marking (source text, consumer text, mark text, stamp text, key text, kind text): rows are
-- marked from now on.
REPLACE INTO outbox_marking (source, consumer, mark, stamp, row_key, key_type)
VALUES (:source, :consumer, :mark, :stamp, :key, :kind);

-- forget_had: from now on, deliveries of another consumer count.
UPDATE outbox_adopted_row SET had = 0 WHERE source = :source AND had = 1;

-- end_mark: rows are no longer marked; the trigger's notes are deleted later.
UPDATE outbox_marking SET mark = '' WHERE source = :source;

-- forget_mark: rows are no longer marked.
DELETE FROM outbox_marking WHERE source = :source;

-- note_had: the consumer has received these events. ids is a JSON array.
UPDATE JSON_TABLE(:ids, '$[*]'
                  COLUMNS (id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin PATH '$')) had
       STRAIGHT_JOIN outbox_event e ON e.id = had.id
       STRAIGHT_JOIN outbox_adopted_row r ON r.nr = e.nr
       STRAIGHT_JOIN outbox_marking m ON m.source = r.source AND m.consumer = :consumer
   SET r.had = 1;

-- marked_tables: tables whose rows this consumer's deliveries mark, and why marking failed.
SELECT source, mark, stamp, row_key, key_type, error FROM outbox_marking
 WHERE consumer = :consumer AND mark <> '' ORDER BY source;

-- rows_to_mark: rows whose events the consumer has received.
SELECT nr, value FROM outbox_adopted_row FORCE INDEX (had)
 WHERE source = :source AND had = 1 ORDER BY nr LIMIT :max;

-- forget_marked: these rows are marked, or were deleted. ids are the numbers of their events.
DELETE r FROM JSON_TABLE(:ids, '$[*]' COLUMNS (nr BIGINT UNSIGNED PATH '$')) done
       STRAIGHT_JOIN outbox_adopted_row r ON r.nr = done.nr AND r.source = :source;

-- in_transaction: whether the transaction is still open.
SELECT @@in_transaction;

-- put_trouble: why rows of the table are not marked; NULL: they are.
UPDATE outbox_marking SET error = :error, error_at = IF(:error IS NULL, NULL, :now)
 WHERE source = :source;
