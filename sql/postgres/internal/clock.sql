-- _clock returns the time, by the one clock that everything here goes by: the database's. It stands
-- still for the length of a statement. But to a procedure that commits, the statement is the whole
-- CALL, however long that takes; there the beginning of the current transaction is later.
-- (CURRENT_TIMESTAMP is no function call, so there is one less to prepare for each emit.)
CREATE OR REPLACE FUNCTION @schema@._clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN greatest(statement_timestamp(), CURRENT_TIMESTAMP);
COMMENT ON FUNCTION @schema@._clock() IS 'the clock leases and retries go by';
