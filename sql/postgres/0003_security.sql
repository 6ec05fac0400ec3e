-- The outbox in a PostgreSQL database, version 3: nobody can do more than they were given.
--
-- The tables are locked while this runs, but for what stands before a line `-- @locked@`. Roles need no rights here: init gives
-- every role its part again (functions/rights.sql).

UPDATE @schema@.meta SET value = '3' WHERE name = 'schema_version';
