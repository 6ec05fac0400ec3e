-- _clock: what time it is: the one clock that everything here goes by, the database's. For a procedure that commits the statement
-- is the whole CALL, and goes on for as long as that: there each transaction's beginning is the later one
-- (CURRENT_TIMESTAMP, which is no function: every event has its time by this, and a call less to get ready for).
CREATE OR REPLACE FUNCTION @schema@._clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN greatest(statement_timestamp(), CURRENT_TIMESTAMP);
COMMENT ON FUNCTION @schema@._clock() IS 'the clock leases and retries go by';
