-- _clock returns the time by the only clock that counts here, the database's. It stands still
-- during a statement. For a procedure that commits, the statement is the whole CALL, however long
-- that takes; there the beginning of the current transaction is later, and counts.
-- (CURRENT_TIMESTAMP is no function call, so each emit has one less to prepare.)
CREATE OR REPLACE FUNCTION @schema@._clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN greatest(statement_timestamp(), CURRENT_TIMESTAMP);
COMMENT ON FUNCTION @schema@._clock() IS 'the clock leases and retries go by';
