-- claim_batch is claim for a worker that works on several consumers. target is the consumer to
-- claim for. NULL claims up to max_events events in all, for every consumer that the caller may
-- work on and that has something to do.
--
-- Each row names its consumer. The rows of a consumer stand together, in order of seq, and have one
-- epoch; they are settled by settle(consumer, worker, epoch).
--
-- Without a target, consumers come in random order, so that a busy one does not starve the others.
-- A consumer that another transaction has locked is skipped, not waited for. An event that was in
-- the hands of a worker that vanished comes alone. A consumer that cannot be claimed for raises an
-- error only if there is nothing else to hand out.
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
    r record;
    n int := 0;               -- how many events were claimed
    state text;               -- the last error that was met, and its text
    text text;
    alone boolean := false;   -- the event must not be joined by others
    brief text := coalesce(current_setting('outbox.brief', true), '');
BEGIN
    PERFORM @schema@._check_claim('claim_batch', worker, max_events, lease_ms, max_attempts);
    IF target IS NOT NULL THEN
        RETURN QUERY
        SELECT target, c.*
        FROM @schema@.claim(target, worker, max_events, lease_ms, max_attempts) c;
        RETURN;
    END IF;

    -- Consumers that have nothing to do are left out before anything is locked.
    names := ARRAY(SELECT w.name FROM @schema@._workable() w
                   WHERE NOT w.paused
                     AND (SELECT i.idle
                          FROM @schema@._idle(w, false, @schema@._clock()) i) IS NOT TRUE
                   ORDER BY random());

    PERFORM set_config('outbox.brief', 'on', true); -- for _try_consumer
    FOREACH name IN ARRAY names LOOP
        -- What was claimed for one consumer stays claimed if the next one fails: each has a
        -- savepoint.
        BEGIN
            -- A careful event comes alone, so it is taken only if nothing was claimed yet.
            FOR r IN SELECT s.*
                     FROM @schema@._claim_some(name, worker, max_events - n, lease_ms, max_attempts,
                                               CASE WHEN n = 0 THEN 2 ELSE 0 END) s LOOP
                consumer := name;
                epoch := r.epoch;
                seq := r.seq;
                id := r.id;
                type := r.type;
                aggregate_type := r.aggregate_type;
                aggregate_id := r.aggregate_id;
                version := r.version;
                payload := r.payload;
                headers := r.headers;
                tenant := r.tenant;
                created_at := r.created_at;
                attempts := r.attempts;
                held := r.held;
                delayed := r.delayed;
                inbox_key := r.inbox_key;
                alone := r.careful;
                n := n + 1;
                RETURN NEXT;
            END LOOP;
        EXCEPTION
            WHEN sqlstate 'OB003' THEN
                NULL; -- it was removed just now
            WHEN OTHERS THEN
                state := SQLSTATE;
                text := format('consumer "%s": %s', name, SQLERRM);
        END;
        EXIT WHEN alone OR n >= max_events;
    END LOOP;
    PERFORM set_config('outbox.brief', brief, true);

    -- What was claimed must reach the caller, so an error counts only if nothing was.
    IF n = 0 AND state IS NOT NULL THEN
        RAISE EXCEPTION '%', text USING ERRCODE = state;
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@.claim_batch(text, int, text, bigint, int) IS
    'leases events to a worker, of one consumer or of all';

-- _workable returns the consumers that the caller may work on, and for whose tenant it acts.
CREATE OR REPLACE FUNCTION @schema@._workable() RETURNS SETOF @schema@.consumer
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    acting text := @schema@._acting_for(current_user);
    given text[];
BEGIN
    -- Whoever may write to the tables may work on all consumers of the tenant.
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
END
$outbox$;
COMMENT ON FUNCTION @schema@._workable() IS 'the consumers that the caller may work on';
