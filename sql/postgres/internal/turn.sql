-- A turn is the work of a worker in one transaction and one round trip: it takes over expired
-- claims, settles a claim, and claims the next events, in that order, because the events of an
-- expired claim must be parked before any event behind them. The types are in 0001_outbox.sql.
--
--     _turn_next     the worker has read ahead, and takes the next chunk: a few statements
--     _turn_full     all cases
--     _turn_single   a simple turn while events arrive one by one; returns them as well
--     _turn_batch    simple turns of several consumers, in one transaction
--
-- _turn uses the first two; claim and settle are built on it. _turns uses the others
-- (simple_turns.sql): a function that returns rows takes longer.
--
-- If the settings that the worker passes differ from the registered ones, `changed` is set, and
-- nothing is claimed: events that only the new filter selects would be lost. known: the claims that
-- the worker holds; NULL: it is not a relay, and does not wait for a locked consumer. knows: the
-- version of the outbox that it was written for; NULL: it claims nothing. A worker of another
-- version may settle, so the next version must understand a settlement from this one, but gets an
-- error if it asks for more.

-- Takes the turn of one consumer.
CREATE OR REPLACE FUNCTION @schema@._turn(q @schema@._request, knows int)
RETURNS @schema@._answer LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    r @schema@._answer;
    there text;
    head bigint;
BEGIN
    @include through(_worker_turn(q, knows))@
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        -- _open_window needs the head as of before any write.
        head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        -- Events must be on disk before they are handed out: this commit also flushes everything
        -- committed before it. So must the effects of a handler that share this transaction.
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    r := @schema@._turn_next(q, knows);
    IF r.place IS NULL THEN
        SELECT m.value INTO there FROM @schema@.meta m WHERE m.name = 'schema_version';
        IF there <> knows::text THEN
            PERFORM @schema@._refuse_version(knows) WHERE q.epoch = 0;
            q.max_events := 0;
        END IF;
        r := @schema@._turn_full(q, head);
    END IF;
    IF q.marks IS NOT NULL THEN PERFORM @schema@._put_marks(q.consumer, q.marks); END IF;
    RETURN r;
END $outbox$;

-- A request that settles and claims nothing, for callers to fill in.
CREATE OR REPLACE FUNCTION @schema@._no_request(consumer text, owner text)
RETURNS @schema@._request LANGUAGE sql IMMUTABLE
RETURN ROW(0, consumer, owner, 0, 0, '[]', 0, NULL, 0, 0, 0, 0, false, false, 0, NULL, NULL, NULL,
           NULL, NULL, -1, NULL, 0, 0, 0, NULL, NULL)::@schema@._request;

-- _turn_next is the turn during a backlog: the worker has read the next events ahead, no row of an
-- adopted table has to be marked, no other worker is active, and no parked event has to come first.
-- The claim becomes the next claim, and the lane advances. If parked events are due and come first,
-- the claim becomes a claim of those, and the lane stays. _turn_exceptions adds statements for
-- events that failed or wait. NULL: the conditions do not hold, and nothing was changed.
CREATE OR REPLACE FUNCTION @schema@._turn_next(q @schema@._request, knows int)
RETURNS @schema@._answer LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    r @schema@._answer;
    l @schema@.lane;
    now timestamptz;
    last bigint;
    first_due timestamptz;  -- of the parked events; NULL: none is parked
    again boolean;          -- parked events come first
    failed boolean := q.outcomes <> '[]';
    due_seqs bigint[];
    due_rows tid[];
    was @schema@.claim;
    new @schema@.claim;
    exceptions record;
BEGIN
    IF (q.ahead_n BETWEEN 1 AND q.max_events AND q.ahead_lane >= 0
        AND (q.ahead_members = @schema@._all_lanes(q.lanes)
             OR random() < 0.9) -- test whether other lanes are free
        AND (q.ordering <> 'global' OR NOT failed) AND q.release_from = 0
        AND current_setting('transaction_isolation') = 'read committed') IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM @schema@.consumer c WHERE c.name = q.consumer
    FOR NO KEY UPDATE SKIP LOCKED; -- the lock of _lock_consumer
    IF NOT FOUND THEN RETURN NULL; END IF;
    now := @schema@._clock();

    -- due_from is stored in lane -1
    SELECT x.consumer, x.lane, x.version, x.seen, x.floor, x.target, x.next_floor, x.window_end,
           x.pos, x.claims_from, x.delivered, x.home, z.due_from, x.leader, x.members,
           x.kept_for, x.kept_until
    INTO l
    FROM @schema@.consumer c,
         LATERAL (SELECT * FROM @schema@.lane y
                  WHERE y.consumer = c.name AND y.lane = q.ahead_lane
                  ORDER BY y.version DESC LIMIT 1) AS x,
         LATERAL (SELECT y.due_from FROM @schema@.lane y
                  WHERE y.consumer = c.name AND y.lane = -1
                  ORDER BY y.version DESC LIMIT 1) AS z
    WHERE c.name = q.consumer AND c.lanes = q.lanes
      AND @include same_settings(c, q)@
      AND @include knows_version(knows)@
      -- cases that _check_tenant rejects
      AND c.tenant = coalesce(current_setting('outbox.tenant', true), '')
      AND (c.tenant = '' OR row_security_active('@schema@.event')
           OR current_user <> @schema@._caller())
      -- the lane stands where the worker read ahead from
      AND x.pos = q.ahead_from AND x.target::text = q.ahead_target
      AND x.leader IS NULL AND @schema@._members(x.members, x.lane) = q.ahead_members
      AND q.ahead_to BETWEEN q.ahead_from + 1 AND x.window_end
      -- the clock was not set back
      AND (z.due_from > now) IS NOT TRUE;
    IF NOT FOUND THEN RETURN NULL; END IF;

    first_due := @schema@._first_due(l.consumer, l.due_from);
    again := coalesce(q.parked_first AND first_due <= now, false);
    IF first_due IS NOT NULL AND (q.ordering = 'global'
                                  OR q.parked_first AND q.clock_repair AND NOT again) THEN
        RETURN NULL;
    END IF;
    IF failed OR first_due IS NOT NULL THEN
        SELECT * INTO was FROM @schema@.claim k WHERE k.consumer = l.consumer AND k.epoch = q.epoch;
        IF again AND (was.lane >= 0) IS NOT TRUE THEN RETURN NULL; END IF;
    END IF;
    new := ROW(l.consumer, q.epoch, l.lane, l.seen, l.floor, l.target, l.next_floor,
               l.window_end, q.ahead_from, q.ahead_to, q.owner,
               now + q.lease_ms * interval '1 millisecond',
               q.lease_ms * interval '1 millisecond', l.members, NULL);
    IF again THEN
        SELECT d.seqs, d.rows INTO due_seqs, due_rows
        FROM @schema@._due_together(l, was, q.max_events, first_due, now) d;
        IF due_seqs IS NULL THEN RETURN NULL; END IF;
        new := ROW(l.consumer, q.epoch, -1, NULL, 0, NULL, NULL, NULL, 0, 0, q.owner,
                   new.locked_until, new.lease, NULL, due_seqs);
    END IF;

    -- The worker still has the claim, and every other claim is alive and known to the worker.
    UPDATE @schema@.claim k
    SET epoch = @schema@._next_epoch(), lane = new.lane, members = new.members,
        seen = new.seen, floor = new.floor, target = new.target,
        next_floor = new.next_floor, window_end = new.window_end,
        from_seq = new.from_seq, to_seq = new.to_seq, locked_until = new.locked_until,
        lease = new.lease, seqs = new.seqs
    WHERE k.consumer = l.consumer AND k.epoch = q.epoch AND k.owner = q.owner
      AND k.locked_until > now AND (k.lane >= 0 AND k.seqs IS NULL OR was.lane = -1)
      AND NOT EXISTS (SELECT 1 FROM @schema@.claim o
                      WHERE o.consumer = l.consumer AND o.epoch >= l.claims_from
                        AND o.epoch <> q.epoch
                        AND ((o.epoch = ANY (q.known)
                              OR o.lane >= 0 AND q.ahead_members
                                 & @schema@._members(o.members, o.lane) = 0)
                             AND @include is_alive(o, now)@) IS NOT TRUE)
      -- The only worker has to join its lanes.
      AND (q.ahead_members = @schema@._all_lanes(q.lanes)
           OR EXISTS (SELECT 1 FROM @schema@.claim o
                      WHERE o.consumer = l.consumer AND o.epoch >= l.claims_from
                        AND o.epoch <> q.epoch AND (o.epoch = ANY (q.known)) IS NOT TRUE))
    RETURNING k.epoch INTO new.epoch;
    IF NOT FOUND THEN RETURN NULL; END IF;
    IF new.epoch <= q.epoch OR new.epoch <= ANY (q.known) THEN
        -- The worker provides q.known: only claims that exist count.
        last := (SELECT max(k.epoch) FROM @schema@.claim k
                 WHERE k.consumer = l.consumer AND k.epoch <> new.epoch);
        IF new.epoch <= greatest(q.epoch, last) THEN
            new.epoch := @schema@._refence(l.consumer, new.epoch, greatest(q.epoch, last));
        END IF;
    END IF;

    r := @schema@._no_answer(q.place, now);
    IF failed OR first_due IS NOT NULL THEN
        l.due_from := least(first_due, now);
        SELECT * INTO exceptions FROM @schema@._turn_exceptions(was, new, l, q, due_rows, now);
        r.held := exceptions.held;
        r.keys := exceptions.keys;
        q.tried := exceptions.delivered;
    END IF;
    UPDATE @schema@.lane x
    SET version = l.version + 1, pos = CASE WHEN again THEN l.pos ELSE q.ahead_to END,
        delivered = l.delivered + q.tried,
        claims_from = (SELECT min(k.epoch) FROM @schema@.claim k
                       WHERE k.consumer = l.consumer AND k.epoch >= l.claims_from)
    WHERE x.consumer = l.consumer AND x.lane = l.lane AND x.version = l.version;

    r.epoch := new.epoch;
    r.lane := new.lane;
    r.from_seq := new.from_seq;
    r.to_seq := new.to_seq;
    IF again THEN
        r.n := cardinality(r.held);
    ELSE
        r.n := q.ahead_n;
        r.seen := l.seen;
        r.floor := l.floor;
        r.target := q.ahead_target;
        r.window_end := l.window_end;
        r.members := q.ahead_members;
    END IF;
    RETURN r;
END $outbox$;

-- The answer of a turn that claimed nothing.
CREATE OR REPLACE FUNCTION @schema@._no_answer(place int, moment timestamptz)
RETURNS @schema@._answer LANGUAGE sql IMMUTABLE
RETURN ROW(place, false, false, false, false, false, false, false, 0, 0, -1,
           floor(extract(epoch FROM moment) * 1000), NULL, NULL, 0, false, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, false, NULL, NULL)::@schema@._answer;

-- Records how claim `was` ended. If the next claim k is one of parked events, it takes those at
-- `rows`, and returns their history (see _take_due). Otherwise it finds the events of k, read ahead
-- in lane l, that have to wait behind parked events of their key (see _held). delivered is how many
-- events lane l has delivered. No parked event is due before l.due_from. Under the consumer's lock.
CREATE OR REPLACE FUNCTION @schema@._turn_exceptions(
    was @schema@.claim, k @schema@.claim, l @schema@.lane, q @schema@._request, rows tid[],
    now timestamptz, OUT delivered bigint, OUT held bigint[], OUT keys bigint[])
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
DECLARE
    c @schema@.consumer;
    most bigint := 4 * q.ahead_n; -- keys worth sending, see _held
BEGIN
    IF k.lane >= 0 OR q.outcomes <> '[]' THEN
        SELECT * INTO c FROM @schema@.consumer x WHERE x.name = l.consumer;
    END IF;
    IF was.lane = -1 THEN
        PERFORM @schema@._settle_retried(c, was, q, l.due_from, now);
        delivered := 0; -- by lane l
    ELSIF q.outcomes <> '[]' THEN
        delivered := greatest(q.tried - @schema@._settle_outcomes(c, was, q.outcomes, now), 0);
    ELSE
        delivered := q.tried;
    END IF;

    IF k.lane = -1 THEN
        SELECT d.seqs, d.past INTO held, keys FROM @schema@._take_due(k, rows, now) d;
    ELSIF c.ordering = 'key' THEN
        IF @schema@._knows_keys(q.key_sample) THEN
            keys := @schema@._held_keys(l.consumer, l.due_from, most + 1);
        END IF;
        IF (cardinality(keys) <= most) IS NOT TRUE THEN
            SELECT h.held, h.keys INTO held, keys
            FROM @schema@._held(c, l, q.ahead_from, q.ahead_to, q.ahead_n, l.due_from,
                                q.key_sample) h;
        END IF;
    END IF;
END $outbox$;

-- Tells a worker of another version why it gets no more events.
CREATE OR REPLACE FUNCTION @schema@._refuse_version(knows int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    there int := (SELECT m.value::int FROM @schema@.meta m WHERE m.name = 'schema_version');
BEGIN
    -- The advice depends on which of the two is older.
    IF there > knows THEN
        RAISE EXCEPTION 'this outbox was upgraded to version %; this program knows %: update it',
            there, knows USING ERRCODE = 'OB005';
    END IF;
    RAISE EXCEPTION 'this outbox has version %; this program needs %: run `outbox migrate up`',
        there, knows USING ERRCODE = 'OB005';
END $outbox$;
