-- claim leases up to max_events events of a consumer to a worker, and returns them in order.
-- Deliver them, then settle the claim by its epoch. Events that are not settled within lease_ms go
-- to another worker. Where order is kept, a lane hands out its next claim only after the one before
-- is settled.
--
-- Call it in a transaction that has written nothing. The lease begins with the commit, and the
-- claim must be durable before the first event goes out. If another transaction that has not ended
-- yet claims or settles for the consumer, claim waits 100 ms for it, and returns nothing.
--
-- Some events must not be delivered now: settle an event that is `held` (its key waits for a retry)
-- as "behind", and one that is `delayed` (its time has not come) as "delay". inbox_key is the key
-- for handle_once: the event's idempotency key if it has one, else its id. claim does not look at
-- the consumer's payload predicate; the worker applies it.
CREATE OR REPLACE FUNCTION @schema@.claim(
    consumer text, worker text, max_events int DEFAULT 100, lease_ms bigint DEFAULT 30000,
    max_attempts int DEFAULT 5)
RETURNS TABLE (
    epoch bigint, seq bigint, id uuid, type text, aggregate_type text, aggregate_id text,
    version bigint, payload json, headers json, tenant text, created_at timestamptz, attempts int,
    held boolean, delayed boolean, inbox_key text)
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    PERFORM @schema@._check_claim('claim', worker, max_events, lease_ms, max_attempts);
    RETURN QUERY
    SELECT s.epoch, s.seq, s.id, s.type, s.aggregate_type, s.aggregate_id, s.version, s.payload,
           s.headers, s.tenant, s.created_at, s.attempts, s.held, s.delayed, s.inbox_key
    FROM @schema@._claim_some(claim.consumer, worker, max_events, lease_ms, max_attempts, 2) s;
END
$outbox$;
COMMENT ON FUNCTION @schema@.claim(text, text, int, bigint, int) IS 'leases events to a worker';

-- _check_claim raises an error for a claim that would not be durable, and for bad arguments. called
-- is the name of the public function, for the messages.
CREATE OR REPLACE FUNCTION @schema@._check_claim(
    called text, worker text, max_events int, lease_ms bigint, max_attempts int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION '% refused: this transaction has written, so the claim would not be '
            'durable before the events go out', called
            USING ERRCODE = 'OB002',
                  HINT = format('COMMIT first, and call %s in a transaction of its own', called);
    END IF;
    IF (max_events BETWEEN 1 AND 100000 AND lease_ms BETWEEN 1 AND 86400000
        AND max_attempts > 0 AND worker <> '') IS NOT TRUE THEN
        RAISE EXCEPTION '% takes a worker, max_events of 1 to 100000, lease_ms of 1 to 86400000, '
            'max_attempts of 1 or more', called USING ERRCODE = 'OB004';
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._check_claim(text, text, int, bigint, int) IS
    'refuses a claim that would not be durable';

-- _claim_some does the work of claim and claim_batch. If `careful` is true, the row is the only
-- one: its event was in the hands of a worker that vanished. For careful_mode see _claim_parked.
CREATE OR REPLACE FUNCTION @schema@._claim_some(
    consumer text, worker text, max_events int, lease_ms bigint, max_attempts int, careful_mode int)
RETURNS TABLE (
    epoch bigint, seq bigint, id uuid, type text, aggregate_type text, aggregate_id text,
    version bigint, payload json, headers json, tenant text, created_at timestamptz, attempts int,
    held boolean, delayed boolean, careful boolean, inbox_key text)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    t record;
    -- The search for events ends early. A statement_timeout would undo all progress, and the next
    -- call would begin where this one did.
    until timestamptz := clock_timestamp()
        + least(interval '200 milliseconds',
                nullif(current_setting('statement_timeout'), '0')::interval / 4);
BEGIN
    -- A turn that only skipped events has made progress, and is followed by another.
    FOR turn IN 1 .. 10000 LOOP
        SELECT * INTO t
        FROM @schema@._turn(_claim_some.consumer, worker, @version@, ROW(0, 0, '[]', 0, NULL),
                            ROW(max_events, lease_ms, max_attempts, careful_mode, true,
                                random() < 0.01, (random() * 63)::int, NULL,
                                NULL, NULL, NULL, NULL),
                            ROW(-1, NULL, 0, 0, 0, NULL, NULL));
        EXIT WHEN t.n > 0 OR NOT t.skipped OR (turn > 2 AND clock_timestamp() > until);
    END LOOP;
    IF t.n = 0 THEN
        RETURN;
    END IF;

    RETURN QUERY
    SELECT t.epoch, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload,
           e.headers, e.tenant, e.created_at, e.attempts,
           coalesce(e.seq = ANY (t.held), false),
           coalesce(e.not_before > @schema@._clock(), false), e.careful,
           -- Two tenants may use the same key, and the platform's inbox serves both: there an event
           -- of a tenant goes by its id.
           CASE WHEN e.tenant IS NULL OR c.tenant <> '' THEN coalesce(e.idempotency_key, e.id::text)
                ELSE e.id::text END
    FROM @schema@.consumer c, LATERAL @schema@._claimed(_claim_some.consumer, t.epoch) e
    WHERE c.name = _claim_some.consumer
    ORDER BY e.seq;

    -- A claim without events: somebody deleted those that were parked. The caller never learns its
    -- epoch, so it is settled here.
    IF NOT FOUND THEN
        PERFORM @schema@.settle(_claim_some.consumer, worker, t.epoch);
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._claim_some(text, text, int, bigint, int, int) IS
    'what claim and claim_batch have in common';
