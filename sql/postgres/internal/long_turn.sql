-- _long_turn is a turn in which anything may have to be considered. _turn describes the parameters
-- and the answer, and takes a shorter way where it can. head: see _claim_fresh.
--
-- The steps, each under the consumer's lock: is this still the outbox that the consumer knows
-- (_turn_home)? Which claims have run out? Settle. Claim (_turn_claim). Write down where the lanes
-- are.
CREATE OR REPLACE FUNCTION @schema@._long_turn(
    consumer text, owner text,
    s @schema@._settlement, q @schema@._request, a @schema@._ahead, head bigint)
RETURNS @schema@._answer
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
DECLARE
    r @schema@._answer;
    c @schema@.consumer;
    k @schema@.claim;
    -- the lanes as they are; [1] is that of the parked events, [i + 2] lane i
    ls @schema@.lane[];
    dirty boolean[];       -- which of them have to be written
    home record;
    claimed record;
    astray text;
    i int;
    idle record;
    surely_idle boolean := false;
    claims_from bigint;
    last_epoch bigint;
    expired boolean;
    too_long boolean;
    due timestamptz;
    first_due timestamptz; -- of the parked events; NULL: there are none
    claiming boolean;
    retried boolean := false; -- parked events were settled
    now timestamptz;
    waited interval := '0';
    slack interval := '1 s'; -- of two turns, the one that began first may come second
BEGIN
    r := ROW(false, NULL, false, false, false, false, false, 0, 0, NULL, NULL,
             NULL, NULL, 0, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL);

    -- Usually nobody has anything to do, and that can be told without a lock.
    IF s.epoch = 0 AND q.max_events > 0 AND head IS NOT NULL THEN
        PERFORM @schema@._check_transaction();
        now := @schema@._clock();
        SELECT * INTO c FROM @schema@.consumer x WHERE x.name = _long_turn.consumer;
        IF FOUND AND NOT (c.marks AND EXISTS (
                          SELECT 1 FROM @schema@.marking m
                          JOIN @schema@.adopted_row w ON w.marking = m.id
                          WHERE m.consumer = c.name)) THEN
            SELECT * INTO idle FROM @schema@._idle(c, q.pull_in, now);
            surely_idle := coalesce(idle.idle, false);
        END IF;
    END IF;
    IF NOT surely_idle THEN
        IF q.known IS NULL AND q.max_events > 0 AND s.epoch = 0 THEN
            waited := @schema@._try_consumer(consumer);
        ELSE
            waited := @schema@._lock_consumer(consumer);
        END IF;
        IF waited IS NULL THEN
            r.busy := true;
            r.wait_ms := 100;
            RETURN r;
        END IF;
        q.known := coalesce(q.known, '{}');
        -- one time for all: a claim is alive in every step, or in none
        now := @schema@._clock() + waited;
        SELECT * INTO c FROM @schema@.consumer x WHERE x.name = _long_turn.consumer;
    END IF;
    r.now_ms := floor(extract(epoch FROM now) * 1000);
    IF c.name IS NULL THEN
        PERFORM @schema@._check_whole();
        RAISE EXCEPTION 'consumer "%" is not registered; it may have been removed',
            _long_turn.consumer USING ERRCODE = 'OB003';
    END IF;
    PERFORM @schema@._check_tenant(c);
    r.paused := c.paused;
    r.changed := coalesce(c.ordering <> q.ordering OR c.lanes <> q.lanes
                          OR c.events <> q.events OR c.predicate <> q.predicate, false);
    IF surely_idle THEN
        IF NOT r.paused AND NOT r.changed THEN
            due := idle.due;
            r.through := idle.through;
        END IF;
        r.wait_ms := @schema@._ms_until(due, now);
        RETURN r;
    END IF;

    -- As _places does. PostgreSQL plans this anew if a column is added to the table, which it would
    -- not notice behind a function.
    SELECT array_agg(x.place ORDER BY n), max((x.place).claims_from) INTO ls, claims_from
    FROM generate_series(-1, c.lanes - 1) AS n,
         LATERAL (SELECT y AS place FROM @schema@.lane y
                  WHERE y.consumer = c.name AND y.lane = n
                  ORDER BY y.version DESC LIMIT 1) x;
    IF array_length(ls, 1) IS DISTINCT FROM c.lanes + 1 THEN
        PERFORM @schema@._lost_place(c);
    END IF;
    dirty := array_fill(false, ARRAY[array_length(ls, 1)]);
    -- No parked event is given a time before now. So due_from holds, unless the clock was set back.
    IF ls[1].due_from > now THEN
        ls[1].due_from := NULL;
        dirty[1] := true;
    END IF;

    IF q.max_events > 0 THEN
        home := @schema@._turn_home(ls);
        IF home.wrong IS NOT NULL OR home.repaired THEN
            RETURN @schema@._repair_turn(c, owner, s, home.wrong, now, r);
        END IF;
        IF home.here IS NOT NULL THEN
            FOR i IN 1 .. array_length(ls, 1) LOOP
                ls[i].home := home.here;
                dirty[i] := true;
            END LOOP;
        END IF;
        IF home.moved THEN
            head := NULL;
        END IF;
    END IF;

    SELECT bool_or(x.locked_until <= now), bool_or(x.locked_until > now + x.lease + slack),
           max(x.epoch)
    INTO expired, too_long, last_epoch
    FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch >= claims_from;
    -- a clock that was ahead when the lease was taken must not make it last for ever
    IF too_long THEN
        UPDATE @schema@.claim x SET locked_until = now + x.lease
        WHERE x.consumer = c.name AND x.epoch >= claims_from
          AND x.locked_until > now + x.lease + slack;
    END IF;
    IF expired AND NOT r.changed AND q.max_attempts > 0 THEN
        SELECT t.crashed, t.buried INTO r.crashed, r.buried
        FROM @schema@._take_over(c, claims_from, q.max_attempts, now, q.known) t;
    END IF;

    IF s.epoch <> 0 THEN -- however late: if the claim is still there, nobody has taken it over
        SELECT * INTO k FROM @schema@.claim x
        WHERE x.consumer = c.name AND x.epoch = s.epoch AND x.owner = _long_turn.owner;
        r.lost := NOT FOUND;
        IF NOT r.lost THEN
            i := k.lane + 2;
            ls[i].claims_from := claims_from;
            ls[i] := @schema@._settle_claim(c, ls[i], k, s.tried, s.outcomes, s.release_from, now);
            dirty[i] := true;
            retried := k.lane = -1;
        END IF;
    END IF;

    claiming := q.max_events > 0 AND NOT r.changed AND NOT r.paused;
    IF claiming OR retried THEN
        first_due := @schema@._first_due(c.name, ls[1].due_from);
    END IF;
    IF retried THEN
        -- Events are gone, and the next look need not step over them. Others that read the clock a
        -- little sooner may come second.
        ls[1].due_from := least(first_due, now - interval '10 milliseconds');
    END IF;
    IF claiming AND q.pull_in AND first_due IS NULL THEN
        first_due := @schema@._first_due(c.name, NULL);
    END IF;

    IF claiming THEN
        SELECT * INTO claimed
        FROM @schema@._turn_claim(c, owner, q, a, head, now, first_due, claims_from, last_epoch, r,
                                  ls, dirty);
        r := claimed.r;
        ls := claimed.ls;
        dirty := claimed.dirty;
        due := claimed.due;
        astray := claimed.astray;
    END IF;

    PERFORM @schema@._put_lanes(ls, dirty);
    IF astray IS NOT NULL THEN
        PERFORM @schema@._make_right(astray);
        r.skipped := true;
        r.wait_ms := -1;
        RETURN r;
    END IF;
    r.wait_ms := @schema@._ms_until(due, now);
    IF c.marks THEN
        PERFORM @schema@._mark_adopted(c);
    END IF;
    RETURN r;
END
$outbox$;
COMMENT ON FUNCTION @schema@._long_turn(text, text, @schema@._settlement, @schema@._request,
    @schema@._ahead, bigint) IS 'a turn in which anything may have to be considered';

-- _repair_turn is the rest of a turn that found an outbox other than the one the consumer knows. It
-- settles, makes the outbox right (wrong says what is the matter; NULL: that was done), and claims
-- nothing. To make it right may dissolve all claims, and events that are still there come again. So
-- a claim that was delivered whole is settled before. Other outcomes name events by their numbers,
-- which may be those of other events now: they are settled after, if the claim is still there.
-- Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._repair_turn(
    c @schema@.consumer, owner text, s @schema@._settlement, wrong text, now timestamptz,
    INOUT r @schema@._answer)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    delivered_whole boolean := s.outcomes = '[]' AND s.release_from = 0;
BEGIN
    IF delivered_whole THEN
        r.lost := NOT @schema@._settle_by_itself(c, owner, s, now);
    END IF;
    IF wrong IS NOT NULL THEN
        PERFORM @schema@._make_right(wrong);
    END IF;
    IF NOT delivered_whole THEN
        r.lost := NOT @schema@._settle_by_itself(c, owner, s, now);
    END IF;
    r.skipped := true;
    r.wait_ms := -1;
END
$outbox$;
COMMENT ON FUNCTION @schema@._repair_turn(@schema@.consumer, text, @schema@._settlement, text,
    timestamptz, @schema@._answer) IS 'a turn that makes the outbox right';

-- _settle_by_itself settles, and does nothing else that belongs to a turn. Returns false if the
-- worker no longer has the claim. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._settle_by_itself(
    c @schema@.consumer, owner text, s @schema@._settlement, now timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k @schema@.claim;
    l @schema@.lane;
BEGIN
    IF s.epoch = 0 THEN
        RETURN true;
    END IF;
    SELECT * INTO k FROM @schema@.claim x
    WHERE x.consumer = c.name AND x.epoch = s.epoch AND x.owner = _settle_by_itself.owner;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT * INTO l FROM @schema@._lanes(c.name, c.lanes) x WHERE x.lane = k.lane;
    PERFORM @schema@._put_lane(
        @schema@._settle_claim(c, l, k, s.tried, s.outcomes, s.release_from, now));
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@._settle_by_itself(@schema@.consumer, text, @schema@._settlement,
    timestamptz) IS 'settles, and does nothing else';

-- _ms_until gives the milliseconds from now to a time, rounded up; -1: there is no such time.
CREATE OR REPLACE FUNCTION @schema@._ms_until(due timestamptz, now timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN $1 IS NULL THEN -1
            ELSE greatest(ceil(extract(epoch FROM $1 - $2) * 1000), 0) END;
COMMENT ON FUNCTION @schema@._ms_until(timestamptz, timestamptz) IS 'milliseconds until a time';
