-- The outbox in a PostgreSQL database, version 6: failed events come as sets, and the answer to a claim of parked events
-- lists them.
--
-- No table changes. A relay of an earlier version would not understand that answer: it may settle what it has, and is
-- refused when it asks for more (see internal/turn.sql).

UPDATE @schema@.meta SET value = '6' WHERE name = 'schema_version';
