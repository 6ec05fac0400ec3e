-- adopt.sql: tables of the application whose rows become events. Statements that name such a table
-- are put together in src/store/mariadb/adopt_rows.c.

-- find_table (schema text, name text): the table as MariaDB spells it, and whether a row of it and
-- its event are one transaction.
SELECT table_name, table_type = 'BASE TABLE' AND engine = 'InnoDB' FROM information_schema.tables
 WHERE table_schema = :schema AND table_name = :name;

-- table_columns (schema text, source text): the columns in their order.
SELECT column_name, data_type FROM information_schema.columns
 WHERE table_schema = :schema AND table_name = :source ORDER BY ordinal_position;

-- id_default (schema text): what gives an event its id. A name of ours would get the database's
-- before it here, hence CONCAT.
SELECT column_default FROM information_schema.columns
 WHERE table_schema = :schema AND table_name = CONCAT('outbox', '_event') AND column_name = 'id';

-- is_adopted (schema text, source text, trigger text): a table is adopted while it has our trigger
-- and that is to make events.
SELECT 1 FROM information_schema.triggers
 WHERE trigger_schema = :schema AND trigger_name = :trigger
   AND EXISTS (SELECT 1 FROM outbox_adopted WHERE source = :source AND active);

-- was_adopted (source text): which rows became events the first time cannot be told afterwards.
SELECT 1 FROM outbox_adopted WHERE source = :source AND at IS NOT NULL;

-- adopted_alike (source text, mapping text): whether adopting it again would change anything.
SELECT mapping = :mapping FROM outbox_adopted WHERE source = :source;

-- prepare_adopted (source text, mapping text): its trigger makes nothing of rows yet.
INSERT INTO outbox_adopted (source, mapping) VALUES (:source, :mapping)
    ON DUPLICATE KEY UPDATE mapping = :mapping, active = 0;

-- lock_adopted (source text): waits for transactions that inserted into the table, and makes the
-- next ones wait.
SELECT 1 FROM outbox_adopted WHERE source = :source FOR UPDATE;

-- set_adopted (source text, active int, now int): from the commit on rows become events, or no
-- longer do.
UPDATE outbox_adopted SET active = :active, at = coalesce(at, IF(:active, :now, NULL))
 WHERE source = :source;

-- set_mapping (source text, mapping text): remembers which columns its trigger reads.
UPDATE outbox_adopted SET mapping = :mapping WHERE source = :source;
