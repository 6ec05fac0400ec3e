-- Leases up to max_events events of a consumer to a worker, and returns them in order. Deliver
-- them, then settle the claim by its epoch. Unless settled within lease_ms, they go to another
-- worker. With an order, a lane hands out its next claim after the previous one is settled.
--
-- Call it in a transaction that has written nothing: the lease begins with the commit, and must be
-- durable before the first event goes out. If another transaction claims or settles for the
-- consumer, claim waits up to 100 ms, and then returns no events.
--
-- Settle an event that is `held` (its key waits for a retry) as "behind", and one that is `delayed`
-- (its not_before is in the future) as "delay", without delivering it. inbox_key is for
-- handle_once. The worker applies the consumer's payload predicate.
CREATE OR REPLACE FUNCTION @schema@.claim(
    consumer text, worker text, max_events int DEFAULT 100, lease_ms bigint DEFAULT 30000,
    max_attempts int DEFAULT 5)
RETURNS TABLE (
    epoch bigint, seq bigint, id uuid, type text, aggregate_type text, aggregate_id text,
    version bigint, payload json, headers json, tenant text, created_at timestamptz, attempts int,
    held boolean, delayed boolean, inbox_key text) LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    PERFORM @schema@._check_claim('claim', worker, max_events, lease_ms, max_attempts);
    RETURN QUERY
    SELECT s.epoch, s.seq, s.id, s.type, s.aggregate_type, s.aggregate_id, s.version, s.payload,
           s.headers, s.tenant, s.created_at, s.attempts, s.held, s.delayed, s.inbox_key
    FROM @schema@._claim_some(claim.consumer, worker, max_events, lease_ms, max_attempts, 2) s;
END $outbox$;
COMMENT ON FUNCTION @schema@.claim(text, text, int, bigint, int) IS 'leases events to a worker';

-- Refuses a claim that would not be durable, and invalid arguments.
CREATE OR REPLACE FUNCTION @schema@._check_claim(
    called text, worker text, max_events int, lease_ms bigint, max_attempts int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION '% refused: this transaction has written, so the claim would not be '
            'durable before the events go out', called
            USING ERRCODE = 'OB002',
                  HINT = format('COMMIT first, then call %s in a new transaction', called);
    END IF;
    IF (max_events BETWEEN 1 AND 100000 AND lease_ms BETWEEN 1 AND 86400000
        AND max_attempts > 0 AND worker <> '') IS NOT TRUE THEN
        RAISE EXCEPTION '% takes a worker, max_events of 1 to 100000, lease_ms of 1 to 86400000, '
            'max_attempts of 1 or more', called USING ERRCODE = 'OB004';
    END IF;
END $outbox$;

-- Does the work of claim and claim_batch. suspect: the claim is one event that was in flight when
-- a worker vanished. For suspect_policy see _claim_parked.
CREATE OR REPLACE FUNCTION @schema@._claim_some(
    consumer text, worker text, max_events int, lease_ms bigint, max_attempts int,
    suspect_policy int)
RETURNS TABLE (
    epoch bigint, seq bigint, id uuid, type text, aggregate_type text, aggregate_id text,
    version bigint, payload json, headers json, tenant text, created_at timestamptz, attempts int,
    held boolean, delayed boolean, inbox_key text, suspect boolean)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    t record;
    q @schema@._request := @schema@._no_request(consumer, worker);
    -- The search ends early: a statement_timeout would undo all progress.
    until timestamptz := clock_timestamp()
        + least(interval '200 milliseconds',
                nullif(current_setting('statement_timeout'), '0')::interval / 4);
BEGIN
    q.max_events := max_events;
    q.lease_ms := lease_ms;
    q.max_attempts := max_attempts;
    q.suspect_policy := suspect_policy;
    q.parked_first := true;
    -- A turn that only skipped events has made progress, so another one follows.
    FOR turn IN 1 .. 10000 LOOP
        q.clock_repair := random() < 0.01;
        q.lane_hint := (random() * 63)::int;
        SELECT * INTO t FROM @schema@._turn(q, @version@);
        EXIT WHEN t.n > 0 OR NOT t.skipped OR (turn > 2 AND clock_timestamp() > until);
    END LOOP;
    IF t.n = 0 THEN RETURN; END IF;

    RETURN QUERY
    SELECT t.epoch, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload,
           e.headers, e.tenant, e.created_at, e.attempts,
           coalesce(e.seq = ANY (t.held), false),
           coalesce(e.not_before > @schema@._clock(), false),
           -- The platform's inbox serves tenants that may use the same key.
           CASE WHEN e.tenant IS NULL OR c.tenant <> '' THEN coalesce(e.idempotency_key, e.id::text)
                ELSE e.id::text END,
           e.suspect
    FROM @schema@.consumer c, LATERAL @schema@._claimed(_claim_some.consumer, t.epoch) e
    WHERE c.name = _claim_some.consumer ORDER BY e.seq;

    -- Its parked events were deleted by hand. The caller never learns the epoch.
    IF NOT FOUND THEN PERFORM @schema@.settle(_claim_some.consumer, worker, t.epoch); END IF;
END $outbox$;

-- claim_batch is claim for several consumers: for `target`, or (NULL) for every consumer with work
-- that the caller may work on, up to max_events in all. The rows of a consumer stand together, in
-- order of seq, and have one epoch.
--
-- Without a target, consumers are tried in random order, so that a busy one does not starve the
-- others, and locked ones are skipped. A suspect event is returned alone. An error in the claim for
-- a consumer is raised only if no other event can be handed out.
CREATE OR REPLACE FUNCTION @schema@.claim_batch(
    worker text, max_events int DEFAULT 100, target text DEFAULT NULL,
    lease_ms bigint DEFAULT 30000, max_attempts int DEFAULT 5)
RETURNS TABLE (
    consumer text, epoch bigint, seq bigint, id uuid, type text, aggregate_type text,
    aggregate_id text, version bigint, payload json, headers json, tenant text,
    created_at timestamptz, attempts int, held boolean, delayed boolean, inbox_key text)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    names text[];
    name text;
    n int := 0;               -- how many events were claimed
    state text;               -- the last error, and its text
    text text;
    alone boolean;            -- the event is suspect: no other joins it
    brief text := coalesce(current_setting('outbox.brief', true), '');
BEGIN
    PERFORM @schema@._check_claim('claim_batch', worker, max_events, lease_ms, max_attempts);
    IF target IS NOT NULL THEN
        RETURN QUERY
        SELECT target, c.*
        FROM @schema@.claim(target, worker, max_events, lease_ms, max_attempts) c;
        RETURN;
    END IF;

    -- Idle consumers are left out before any lock is taken.
    names := ARRAY(SELECT w.name FROM @schema@._workable() w
                   WHERE NOT w.paused
                     AND (SELECT i.idle
                          FROM @schema@._idle(w, false, @schema@._clock()) i) IS NOT TRUE
                   ORDER BY random());

    PERFORM set_config('outbox.brief', 'on', true); -- see _wait_for_consumer
    FOREACH name IN ARRAY names LOOP
        -- A claim for one consumer remains if the next one fails: each has a savepoint.
        BEGIN
            -- A suspect event is returned alone, so only the first claim may be one.
            FOR consumer, epoch, seq, id, type, aggregate_type, aggregate_id, version, payload,
                headers, tenant, created_at, attempts, held, delayed, inbox_key, alone
            IN SELECT name, s.*
               FROM @schema@._claim_some(name, worker, max_events - n, lease_ms, max_attempts,
                                         CASE WHEN n = 0 THEN 2 ELSE 0 END) s LOOP
                n := n + 1;
                RETURN NEXT;
            END LOOP;
        EXCEPTION
            WHEN sqlstate 'OB003' THEN
                NULL; -- the consumer was just removed
            WHEN OTHERS THEN
                state := SQLSTATE;
                text := format('consumer "%s": %s', name, SQLERRM);
        END;
        EXIT WHEN alone OR n >= max_events;
    END LOOP;
    PERFORM set_config('outbox.brief', brief, true);

    -- Claimed events must reach the caller, so an error counts only if no event was claimed.
    IF n = 0 AND state IS NOT NULL THEN
        RAISE EXCEPTION '%', text USING ERRCODE = state;
    END IF;
END $outbox$;
COMMENT ON FUNCTION @schema@.claim_batch(text, int, text, bigint, int) IS
    'leases events to a worker, of one consumer or of all';

-- The consumers that the caller may work on, of the tenant that it acts for.
CREATE OR REPLACE FUNCTION @schema@._workable() RETURNS SETOF @schema@.consumer
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    acting text := @schema@._acting_for(current_user);
    given text[];
BEGIN
    -- A role that may write to the tables may work on all consumers of the tenant.
    IF has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN QUERY
        SELECT * FROM @schema@.consumer c WHERE c.tenant = acting ORDER BY c.name;
        RETURN;
    END IF;
    SELECT array_agg(y) INTO given
    FROM @schema@.worker w, unnest(@schema@._name_like(w.consumer)) AS y
    WHERE @schema@._inherits(current_user, w.role);
    IF given IS NULL THEN
        RAISE EXCEPTION 'permission denied: role "%" may not work on any consumer', current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('run as the outbox''s owner: outbox grant consumer %I',
                                current_user);
    END IF;
    RETURN QUERY
    SELECT * FROM @schema@.consumer c
    WHERE c.tenant = acting AND c.name LIKE ANY (given) ORDER BY c.name;
END $outbox$;

-- Moves the end of a claim to lease_ms from now. Returns false if the worker no longer has it; an
-- expired claim is its own until taken over. absolve: a crash will not count as an attempt of its
-- event, because the worker is being stopped, or holds other such events.
CREATE OR REPLACE FUNCTION @schema@.extend(
    consumer text, worker text, epoch bigint, lease_ms bigint DEFAULT 30000,
    absolve boolean DEFAULT false) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    @include through(_worker_extend(consumer, worker, epoch, lease_ms, absolve))@
    IF (lease_ms BETWEEN 1 AND 86400000) IS NOT TRUE THEN
        RAISE EXCEPTION 'lease_ms must be 1 to 86400000 (a day)' USING ERRCODE = 'OB004';
    END IF;
    -- A session that is about to take over the claim must see this.
    PERFORM @schema@._lock_consumer(consumer);
    UPDATE @schema@.claim x
    SET locked_until = @schema@._clock() + extend.lease_ms * interval '1 millisecond',
        lease = extend.lease_ms * interval '1 millisecond',
        blamed = x.blamed AND NOT absolve
    WHERE x.consumer = extend.consumer AND x.epoch = extend.epoch AND x.owner = extend.worker;
    RETURN FOUND;
END $outbox$;
COMMENT ON FUNCTION @schema@.extend(text, text, bigint, bigint, boolean) IS 'extends a claim';
