-- _single_turn is _turns for one consumer that has no other claim, and hands out the events as
-- well: at a low rate, one call does all that an event costs. It gives a row for each event, with
-- the answer in every row; the answer alone, without a seq, if nothing was claimed, or if the
-- events are many or large, so that the worker has to read them. No row: the turn is not simple,
-- and nothing was done.
--
-- The events are read with the rights of the caller, in a statement that begins after the claim was
-- made, and so sees all that it covers.
CREATE OR REPLACE FUNCTION @schema@._single_turn(q @schema@._simple, knows int)
RETURNS TABLE (seq bigint, id uuid, type text, aggregate_type text, aggregate_id text,
               version bigint, payload json, headers json, tenant text, created_at timestamptz,
               not_before timestamptz, idempotency_key text,
               epoch bigint, n bigint, seen text, floor bigint, target text, window_end bigint,
               now_ms bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
#variable_conflict use_column
DECLARE
    a record;
BEGIN
    IF has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        a := @schema@._simple_turn(q, knows);
    ELSE
        a := @schema@._worker_simple_turn(q, knows);
    END IF;
    IF a.made THEN
        RETURN QUERY
        SELECT e.seq::bigint, e.id::uuid, e.type::text, e.aggregate_type::text,
               e.aggregate_id::text, e.version::bigint,
               CASE WHEN pg_column_size(e.payload) + coalesce(pg_column_size(e.headers), 0) < 8000
                    THEN e.payload::json END, -- without it the worker reads all of them
               e.headers::json, e.tenant::text, e.created_at::timestamptz,
               e.not_before::timestamptz, e.idempotency_key::text,
               a.epoch, coalesce(cardinality(a.wanted), 0)::bigint, a.seen::text, a.floor,
               a.target::text, a.window_end,
               floor(extract(epoch FROM @schema@._clock()) * 1000)::bigint
        FROM (SELECT 1) AS one
        LEFT JOIN @schema@.event e ON e.seq = ANY (a.wanted) AND cardinality(a.wanted) <= 8
        ORDER BY e.seq;
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._single_turn(@schema@._simple, int) IS
    'a simple turn of one consumer, with the events';

-- _simple_turn makes that turn. What is simple, and in which order the steps come, is as in _turns,
-- which explains it. Every statement and every expression of a function is set up anew in each
-- transaction, which takes longer than what it does for one consumer. So these are few. wanted has
-- the seqs of the events that were claimed.
--
-- The look at the lane sees what is new with the snapshot that becomes the end of the window: it
-- shows each event that the look sees, and no other.
CREATE OR REPLACE FUNCTION @schema@._simple_turn(
    q @schema@._simple, knows int,
    OUT made boolean, OUT epoch bigint, OUT wanted bigint[], OUT seen pg_snapshot,
    OUT floor bigint, OUT target pg_snapshot, OUT window_end bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
#variable_conflict use_column
DECLARE
    on_disk text := @schema@._on_disk();
    head bigint := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    likes text[];
    start_floor bigint;
    was_at bigint;       -- the version of the lane
    claims_from bigint;
    upto bigint;         -- its last window ended there
    last bigint;
    news bigint;         -- events that are new, wanted or not
    all_named boolean;   -- all that are running are named in the snapshot
    had_running boolean; -- some were when the last window ended
    lowest bigint;       -- the first of their events
    mode text;           -- assigned, since PERFORM would be a statement
BEGIN
    SELECT c.type_like, CASE WHEN c.start_seen::text = '1:1:' THEN c.start_floor END
    INTO likes, start_floor
    FROM @schema@.consumer c
    WHERE c.name = q.consumer AND c.lanes = 1 AND c.ordering = q.ordering
      AND c.events = q.events AND c.predicate = q.predicate
      AND c.tenant = '' AND NOT c.paused AND NOT c.marks
      AND pg_current_xact_id_if_assigned() IS NULL
      AND current_setting('transaction_isolation') = 'read committed'
      AND coalesce(current_setting('outbox.tenant', true), '') = ''
      AND EXISTS (SELECT 1 FROM @schema@.meta m
                  WHERE m.name = 'schema_version' AND m.value = knows::text)
      AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_subscription_rel r
                      WHERE r.srrelid = '@schema@.event'::regclass)
    FOR NO KEY UPDATE OF c SKIP LOCKED; -- as in _lock_consumer
    IF NOT FOUND THEN
        RETURN;
    END IF;

    -- Where the consumer stands, and what is new there, if both are simple.
    SELECT l.version, l.claims_from, p.seen, p.floor, l.window_end, pg_current_snapshot(),
           fresh.n, fresh.wanted, fresh.last,
           pg_current_xact_id() = pg_snapshot_xmax(pg_current_snapshot()),
           pg_snapshot_xmin(p.seen) <> pg_snapshot_xmax(p.seen)
    INTO was_at, claims_from, seen, floor, upto, target, news, wanted, window_end, all_named,
         had_running
    FROM (SELECT x.version, x.claims_from, x.window_end, x.home, x.target, x.pos, x.seen, x.floor,
                 x.next_floor
          FROM @schema@.lane x
          WHERE x.consumer = q.consumer AND x.lane = 0
          ORDER BY x.version DESC LIMIT 1) l
    CROSS JOIN (SELECT x.due_from FROM @schema@.lane x
                WHERE x.consumer = q.consumer AND x.lane = -1
                ORDER BY x.version DESC LIMIT 1) waits
    CROSS JOIN LATERAL (SELECT coalesce(l.target, l.seen) AS seen,
                               CASE WHEN l.target IS NULL THEN l.floor
                                    ELSE greatest(l.floor, l.next_floor) END AS floor) p
    CROSS JOIN LATERAL (
        SELECT count(*) AS looked, max(e.seq) AS last,
               count(*) FILTER (WHERE e.new) AS n,
               array_agg(e.seq) FILTER (WHERE e.new AND (likes IS NULL OR e.type LIKE ANY (likes)))
                   AS wanted,
               bool_or(e.seq > l.window_end AND pg_visible_in_snapshot(e.xid, p.seen)) AS strange
        FROM (SELECT x.seq, x.type, x.xid,
                     x.seq > p.floor AND x.xid >= pg_snapshot_xmax(p.seen) AS new
              FROM @schema@.event x
              WHERE x.seq > least(p.floor, l.window_end) ORDER BY x.seq LIMIT 257) e) fresh
    WHERE (l.target IS NULL OR l.pos >= l.window_end)
      AND @schema@._at_home(l.home, concat(current_setting('outbox.cluster', true), '/',
                                           '@schema@.event_seq_seq'::regclass::oid, '/',
                                           pg_relation_filenode('@schema@.event_seq_seq')))
      AND (p.floor <= start_floor) IS NOT TRUE -- as in _reached
      AND (waits.due_from > @schema@._clock()) IS NOT TRUE
      AND (SELECT x.due_at FROM @schema@.parked x
           WHERE x.consumer = q.consumer
             AND x.due_at >= coalesce(CASE WHEN q.pull_in IS NOT TRUE THEN waits.due_from END,
                                      '-infinity')
           ORDER BY x.due_at, x.seq LIMIT 1) IS NULL -- as in _first_due
      AND (SELECT k.epoch FROM @schema@.claim k
           WHERE k.consumer = q.consumer AND k.epoch >= l.claims_from AND k.epoch <> q.epoch
           LIMIT 1) IS NULL
      -- Is this still the outbox that the lane knows? The questions are those of _claim_fresh.
      AND fresh.looked <= 256 AND fresh.strange IS NOT TRUE
      AND ((SELECT e.seq FROM @schema@.event e
            WHERE e.xid >= pg_snapshot_xmax(p.seen)
            ORDER BY e.xid, e.seq LIMIT 1) <= least(p.floor, l.window_end)) IS NOT TRUE
      AND (SELECT e.xid >= pg_snapshot_xmax(p.seen)
           FROM @schema@.event e
           WHERE e.seq <= least(p.floor, l.window_end)
             AND e.seq > least(p.floor, l.window_end) - 100
           ORDER BY e.seq DESC LIMIT 1) IS NOT TRUE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    mode := @schema@._commit_mode(on_disk, target);
    IF NOT all_named THEN
        target := @schema@._name_running(target);
    END IF;
    IF had_running THEN -- their events come late
        SELECT news + count(*),
               wanted || array_agg(e.seq) FILTER (WHERE likes IS NULL OR e.type LIKE ANY (likes)),
               greatest(_simple_turn.window_end, max(e.seq)), min(e.seq)
        INTO news, wanted, window_end, lowest
        FROM (SELECT i.seq, i.type
              FROM pg_snapshot_xip(_simple_turn.seen) AS r (xid),
                   LATERAL (SELECT y.seq, y.type FROM @schema@.event y
                            WHERE y.xid = r.xid ORDER BY y.seq LIMIT 257) i
              WHERE pg_visible_in_snapshot(r.xid, _simple_turn.target) LIMIT 257) e;
    END IF;
    -- No event that the snapshot shows is past the last number, which is read after it.
    last := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    IF target IS NULL OR upto > last OR window_end > last OR lowest <= start_floor
       OR news > 256 OR cardinality(wanted) > q.max_events THEN
        RETURN;
    END IF;
    window_end := last;

    -- The claim becomes the next one.
    IF wanted IS NULL THEN
        DELETE FROM @schema@.claim k
        WHERE k.consumer = q.consumer AND k.epoch = q.epoch AND k.owner = q.owner AND k.lane = 0
          AND k.locked_until > @schema@._clock();
    ELSIF q.epoch = 0 THEN
        INSERT INTO @schema@.claim AS k
        VALUES (q.consumer, @schema@._next_epoch(), 0, _simple_turn.seen, _simple_turn.floor,
                _simple_turn.target, head, _simple_turn.window_end, 0, _simple_turn.window_end,
                q.owner, @schema@._clock() + q.lease_ms * interval '1 millisecond',
                q.lease_ms * interval '1 millisecond')
        RETURNING k.epoch INTO epoch;
    ELSE
        UPDATE @schema@.claim k
        SET epoch = @schema@._next_epoch(), seen = _simple_turn.seen, floor = _simple_turn.floor,
            target = _simple_turn.target, next_floor = head,
            window_end = _simple_turn.window_end, from_seq = 0, to_seq = _simple_turn.window_end,
            locked_until = @schema@._clock() + q.lease_ms * interval '1 millisecond',
            lease = q.lease_ms * interval '1 millisecond', members = NULL
        WHERE k.consumer = q.consumer AND k.epoch = q.epoch AND k.owner = q.owner AND k.lane = 0
          AND k.locked_until > @schema@._clock()
        RETURNING k.epoch INTO epoch;
    END IF;
    IF q.epoch <> 0 AND NOT FOUND THEN
        RETURN; -- it is not the worker's
    END IF;
    IF epoch <= greatest(q.epoch, claims_from - 1) THEN
        RAISE EXCEPTION 'the sequence @schema@.epoch is behind' USING ERRCODE = 'OB006',
            HINT = 'a turn of each consumer by itself puts that right';
    END IF;

    -- Without news the window is closed at once. As in _put_lane, the newest row has the highest
    -- version.
    IF q.epoch <> 0 OR news > 0 OR floor < head THEN
        UPDATE @schema@.lane x
        SET version = was_at + 1,
            seen = CASE WHEN news > 0 THEN _simple_turn.seen ELSE _simple_turn.target END,
            floor = CASE WHEN news > 0 THEN _simple_turn.floor
                         ELSE greatest(_simple_turn.floor, head) END,
            target = CASE WHEN news > 0 THEN _simple_turn.target END,
            next_floor = head, window_end = _simple_turn.window_end,
            pos = CASE WHEN news > 0 THEN _simple_turn.window_end ELSE 0 END,
            claims_from = coalesce(_simple_turn.epoch, nullif(q.epoch + 1, 1), x.claims_from),
            delivered = x.delivered + greatest(q.tried, 0)
        WHERE x.consumer = q.consumer AND x.lane = 0 AND x.version = was_at;
    END IF;
    IF q.marks IS NOT NULL THEN
        PERFORM @schema@._put_marks(q.consumer, q.marks);
    END IF;
    made := true;
END
$outbox$;
COMMENT ON FUNCTION @schema@._simple_turn(@schema@._simple, int) IS
    'a simple turn of one consumer';

-- _worker_simple_turn is _simple_turn for a role that may not write to the tables. A door, see
-- _admit.
CREATE OR REPLACE FUNCTION @schema@._worker_simple_turn(
    q @schema@._simple, knows int,
    OUT made boolean, OUT epoch bigint, OUT wanted bigint[], OUT seen pg_snapshot,
    OUT floor bigint, OUT target pg_snapshot, OUT window_end bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    IF NOT @schema@._admit('consumer', q.consumer) THEN
        RETURN;
    END IF;
    -- What a worker says of the cluster could be anything: the server is asked, as in _turn_home.
    PERFORM set_config('outbox.cluster', '', true);
    PERFORM @schema@._home();
    SELECT t.* INTO made, epoch, wanted, seen, floor, target, window_end
    FROM @schema@._simple_turn(q, knows) t;
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_simple_turn(@schema@._simple, int) IS
    '_simple_turn, for workers';
