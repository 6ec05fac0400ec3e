-- _turn does all that a worker does in one transaction, and one round trip: it takes over what has
-- expired, settles a claim (s), and claims the next one (q). The order matters: what an expired
-- claim held must be parked before anything that waits behind it is handed out. The relay calls
-- this; claim and settle are its simple faces. 0001_outbox.sql describes s, q, a and the answer.
--
-- The worker passes the settings it works with (q.ordering, lanes, events, predicate). If those are
-- not the registered ones, `changed` is set and nothing is claimed: what another filter passes over
-- would be lost.
--
-- The worker also passes the claims it holds (q.known). A fresh claim of its own that it does not
-- know, because the answer got lost, keeps its lane busy until the lease has run out. NULL: the
-- caller is no relay, and a claim for it does not wait for a consumer that is locked.
--
-- knows is the version of the outbox that the worker was written for. A worker of another version
-- may settle what it has, so that nothing it delivered is delivered again; it is refused when it
-- asks for more, and stops. So the functions of the next version must understand a settlement of
-- this one. NULL: the caller claims nothing.
--
-- The owner of the tables does all this directly. Other roles have no right to write to them, and
-- go through _worker_turn, which comes back here if they may.
--
-- Usually there is little to consider: what comes next was read ahead, no row of an adopted table
-- is to be marked, no other worker is at work, and no parked event has to come first. Then the
-- claim becomes the next claim and the lane moves on: a few statements, and some more for events
-- that failed, have to wait or are tried again (_turn_exceptions). If parked events are due and
-- come first, the claim becomes one of those, and the lane stays where it is. _long_turn does the
-- rest.
CREATE OR REPLACE FUNCTION @schema@._turn(
    consumer text, owner text, knows int,
    s @schema@._settlement, q @schema@._request, a @schema@._ahead) RETURNS @schema@._answer
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    r @schema@._answer;
    l @schema@.lane;
    now timestamptz;
    there text;
    head bigint;
    last bigint;
    locked boolean := false;
    simple boolean;
    first_due timestamptz;  -- of the parked events; NULL: there are none
    again boolean := false; -- they come first
    due_seqs bigint[];
    due_rows tid[];
    was @schema@.claim;
    new @schema@.claim;
    exceptions record;
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._worker_turn(consumer, owner, knows, s, q, a);
    END IF;
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        -- For _claim_fresh, which needs it from before anything is written.
        head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        -- What is handed out must be on disk first: this commit takes along everything that was
        -- committed before it. The effects of a handler, which share its transaction, must be, too.
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    -- May the claim simply become the next one?
    IF a.n BETWEEN 1 AND q.max_events AND a.lane >= 0
       AND (a.members = @schema@._all_lanes(q.lanes) OR random() < 0.9) -- see if others are free
       AND (s.outcomes = '[]' OR q.ordering <> 'global') AND s.release_from = 0
       AND current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM 1 FROM @schema@.consumer c WHERE c.name = _turn.consumer
        FOR NO KEY UPDATE SKIP LOCKED; -- as _lock_consumer locks it
        locked := FOUND;
    END IF;
    IF locked THEN
        now := @schema@._clock();
        -- due_from is that of lane -1
        SELECT x.consumer, x.lane, x.version, x.seen, x.floor, x.target, x.next_floor, x.window_end,
               x.pos, x.claims_from, x.delivered, x.home, z.due_from, x.leader, x.members,
               x.kept_for, x.kept_until
        INTO l
        FROM @schema@.consumer c,
             LATERAL (SELECT * FROM @schema@.lane y WHERE y.consumer = c.name AND y.lane = a.lane
                      ORDER BY y.version DESC LIMIT 1) AS x,
             LATERAL (SELECT y.due_from FROM @schema@.lane y
                      WHERE y.consumer = c.name AND y.lane = -1
                      ORDER BY y.version DESC LIMIT 1) AS z
        WHERE c.name = _turn.consumer AND c.lanes = q.lanes
          AND @include same_settings(c, q)@
          AND @include knows_version(knows)@
          -- what _check_tenant would refuse
          AND c.tenant = coalesce(current_setting('outbox.tenant', true), '')
          AND (c.tenant = '' OR row_security_active('@schema@.event')
               OR current_user <> @schema@._caller())
          -- the lane stands where the worker read on
          AND x.pos = a.from_seq AND x.target::text = a.target
          AND x.leader IS NULL AND @schema@._members(x.members, x.lane) = a.members
          AND a.to_seq BETWEEN a.from_seq + 1 AND x.window_end
          -- the clock was not set back
          AND (z.due_from > now) IS NOT TRUE;
        simple := FOUND;
        IF simple THEN
            first_due := @schema@._first_due(l.consumer, l.due_from);
            again := coalesce(q.parked_first AND first_due <= now, false);
            simple := first_due IS NULL
                      OR (q.ordering <> 'global' AND (again OR NOT (q.parked_first AND q.pull_in)));
        END IF;
        IF simple AND (s.outcomes <> '[]' OR first_due IS NOT NULL) THEN
            SELECT * INTO was FROM @schema@.claim k
            WHERE k.consumer = l.consumer AND k.epoch = s.epoch;
            simple := was.lane >= 0 OR NOT again;
        END IF;
        new := ROW(l.consumer, s.epoch, l.lane, l.seen, l.floor, l.target, l.next_floor,
                   l.window_end, a.from_seq, a.to_seq, owner,
                   now + q.lease_ms * interval '1 millisecond',
                   q.lease_ms * interval '1 millisecond', l.members, NULL);
        IF simple AND again THEN
            SELECT d.seqs, d.rows INTO due_seqs, due_rows
            FROM @schema@._due_together(l, was, q.max_events, first_due, now) d;
            simple := due_seqs IS NOT NULL;
            new := ROW(l.consumer, s.epoch, -1, NULL, 0, NULL, NULL, NULL, 0, 0, owner,
                       new.locked_until, new.lease, NULL, due_seqs);
        END IF;

        -- The claim is still the worker's, and every other claim is alive and known to it.
        UPDATE @schema@.claim k
        SET epoch = @schema@._next_epoch(), lane = new.lane, members = new.members,
            seen = new.seen, floor = new.floor, target = new.target,
            next_floor = new.next_floor, window_end = new.window_end,
            from_seq = new.from_seq, to_seq = new.to_seq, locked_until = new.locked_until,
            lease = new.lease, seqs = new.seqs
        WHERE simple
          AND k.consumer = l.consumer AND k.epoch = s.epoch AND k.owner = _turn.owner
          AND k.locked_until > now AND (k.lane >= 0 OR was.lane = -1)
          AND NOT EXISTS (SELECT 1 FROM @schema@.claim o
                          WHERE o.consumer = l.consumer AND o.epoch >= l.claims_from
                            AND o.epoch <> s.epoch
                            AND ((o.epoch = ANY (q.known)
                                  OR o.lane >= 0 AND a.members
                                     & @schema@._members(o.members, o.lane) = 0)
                                 AND @include is_alive(o, now)@) IS NOT TRUE)
          -- A worker that is alone has to bring its lanes together.
          AND (a.members = @schema@._all_lanes(q.lanes)
               OR EXISTS (SELECT 1 FROM @schema@.claim o
                          WHERE o.consumer = l.consumer AND o.epoch >= l.claims_from
                            AND o.epoch <> s.epoch AND (o.epoch = ANY (q.known)) IS NOT TRUE))
        RETURNING k.epoch INTO r.epoch;
        IF FOUND THEN
            IF r.epoch <= s.epoch OR r.epoch <= ANY (q.known) THEN
                -- q.known comes from the worker: only claims that exist count.
                last := (SELECT max(k.epoch) FROM @schema@.claim k
                         WHERE k.consumer = l.consumer AND k.epoch <> r.epoch);
                IF r.epoch <= greatest(s.epoch, last) THEN
                    r.epoch := @schema@._refence(l.consumer, r.epoch, greatest(s.epoch, last));
                END IF;
            END IF;
            new.epoch := r.epoch;
            IF s.outcomes <> '[]' OR first_due IS NOT NULL THEN
                l.due_from := least(first_due, now);
                SELECT * INTO exceptions
                FROM @schema@._turn_exceptions(was, new, l, s, a, due_rows, now);
                r.held := exceptions.held;
                r.keys := exceptions.keys;
                s.tried := exceptions.delivered;
            END IF;
            UPDATE @schema@.lane x
            SET version = l.version + 1, pos = CASE WHEN again THEN l.pos ELSE a.to_seq END,
                delivered = l.delivered + s.tried,
                claims_from = (SELECT min(k.epoch) FROM @schema@.claim k
                               WHERE k.consumer = l.consumer AND k.epoch >= l.claims_from)
            WHERE x.consumer = l.consumer AND x.lane = l.lane AND x.version = l.version;
            IF s.marks IS NOT NULL THEN
                PERFORM @schema@._put_marks(l.consumer, s.marks);
            END IF;
            IF again THEN
                RETURN ROW(false, false, false, false, false, false, false, 0, 0, -1,
                           floor(extract(epoch FROM now) * 1000), r.epoch, -1,
                           cardinality(r.held), false, r.held, NULL, NULL, NULL, 0, 0, NULL,
                           false, NULL, r.keys)::@schema@._answer;
            END IF;
            r := ROW(false, false, false, false, false, false, false, 0, 0, -1,
                     floor(extract(epoch FROM now) * 1000), r.epoch, l.lane, a.n, false, r.held,
                     l.seen, l.floor, a.target, a.from_seq, a.to_seq, l.window_end, false,
                     a.members, r.keys);
            RETURN r;
        END IF;
    END IF;

    SELECT m.value INTO there FROM @schema@.meta m WHERE m.name = 'schema_version';
    IF there <> knows::text THEN
        IF s.epoch = 0 THEN
            PERFORM @schema@._refuse_version(knows);
        END IF;
        q.max_events := 0;
    END IF;
    r := @schema@._long_turn(consumer, owner, s, q, a, head);
    IF s.marks IS NOT NULL THEN
        PERFORM @schema@._put_marks(consumer, s.marks);
    END IF;
    RETURN r;
END
$outbox$;

-- _turn_exceptions handles exceptions on the fast path of _turn. It records how claim `was` ended.
-- Then, if the next claim k is one of parked events, it takes those, which are at `rows`, and gives
-- what they have been through (see _take_due). Otherwise it finds the events of k, a of lane l,
-- that have to wait behind parked ones of their key (see _held). delivered: how many events lane l
-- has delivered. l.due_from: no parked event has an earlier time. Under the consumer's lock.
CREATE OR REPLACE FUNCTION @schema@._turn_exceptions(
    was @schema@.claim, k @schema@.claim, l @schema@.lane, s @schema@._settlement,
    a @schema@._ahead, rows tid[], now timestamptz,
    OUT delivered bigint, OUT held bigint[], OUT keys bigint[])
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
DECLARE
    c @schema@.consumer;
BEGIN
    IF k.lane >= 0 OR s.outcomes <> '[]' THEN
        SELECT * INTO c FROM @schema@.consumer x WHERE x.name = l.consumer;
    END IF;
    IF was.lane = -1 THEN
        PERFORM @schema@._settle_retried(c, was, s, l.due_from, now);
        delivered := 0; -- by this lane
    ELSIF s.outcomes <> '[]' THEN
        delivered := greatest(s.tried - @schema@._settle_outcomes(c, was, s.outcomes, now), 0);
    ELSE
        delivered := s.tried;
    END IF;

    IF k.lane = -1 THEN
        SELECT d.seqs, d.past INTO held, keys FROM @schema@._take_due(k, rows, now) d;
    ELSIF c.ordering = 'key' AND @schema@._knows_keys(a.sample) THEN
        keys := @schema@._held_keys(l.consumer, l.due_from, 4 * a.n + 1); -- as in _held
    END IF;
    IF k.lane >= 0 AND c.ordering = 'key' AND (cardinality(keys) <= 4 * a.n) IS NOT TRUE THEN
        SELECT h.held, h.keys INTO held, keys
        FROM @schema@._held(c, l, a.from_seq, a.to_seq, a.n, l.due_from, a.sample) h;
    END IF;
END
$outbox$;

-- _refuse_version raises the error that tells a worker of another version why it gets nothing more.
-- knows is the version that the worker was written for.
CREATE OR REPLACE FUNCTION @schema@._refuse_version(knows int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    there int := (SELECT m.value::int FROM @schema@.meta m WHERE m.name = 'schema_version');
BEGIN
    -- What to do depends on which of the two is behind.
    IF there > knows THEN
        RAISE EXCEPTION 'this outbox was brought up to version %; this program knows %: update it',
            there, knows USING ERRCODE = 'OB005';
    END IF;
    RAISE EXCEPTION 'this outbox has version %; this program wants %: run `outbox migrate up`',
        there, knows USING ERRCODE = 'OB005';
END
$outbox$;
