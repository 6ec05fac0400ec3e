-- The outbox in a PostgreSQL database, version 4: the contract, to the letter.
--
-- The tables are locked while this runs, but for what stands before a line `-- @locked@`. Roles need no rights here: init gives
-- every role its part again (functions/rights.sql).

UPDATE @schema@.meta SET value = '4' WHERE name = 'schema_version';
