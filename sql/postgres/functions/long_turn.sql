-- long_turn: a turn, whatever has to be considered. turn says what its parameters and its answer are, and takes the short way
-- where nothing has.
CREATE OR REPLACE FUNCTION @schema@.long_turn(
    consumer text, owner text,
    settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint,
    max_events int, lease_ms bigint, max_attempts int, careful_mode int, parked_first boolean, pull_in boolean,
    lane_hint int, known bigint[], ordering text, lanes int, events text, predicate text,
    ahead_lane int, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n int, head bigint,
    OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean,
    OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint,
    OUT epoch bigint, OUT lane int, OUT n int, OUT careful boolean, OUT held bigint[],
    OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $outbox$
DECLARE
    c @schema@.consumer;
    ls @schema@.lane[];
    dirty boolean[];
    l @schema@.lane;
    k @schema@.claim;
    p record;
    f record;
    i int;
    idle boolean := false;
    idle_due timestamptz;
    idle_through boolean;
    here text;
    trouble record;
    claims_from bigint;
    last_epoch bigint;
    expired boolean;
    too_long boolean;
    parked boolean;
    free boolean;
    until timestamptz;
    due timestamptz;
    slack interval := '1 s'; -- of two turns the one that began first may come second
    lease interval := lease_ms * interval '1 millisecond';
    now timestamptz;
    waited interval;
BEGIN
    lost := false; changed := false; busy := false; through := false; skipped := false; careful_due := false;
    crashed := 0; buried := 0; n := 0; careful := false;
    waited := '0';
    IF settle_epoch = 0 AND max_events > 0 AND head IS NOT NULL THEN -- mostly nobody has anything to do, and that is told without a lock
        PERFORM @schema@.check_transaction();
        now := @schema@.clock();
        SELECT * INTO c FROM @schema@.consumer x WHERE x.name = long_turn.consumer;
        IF FOUND AND NOT (c.marks AND EXISTS (SELECT 1 FROM @schema@.marking m JOIN @schema@.adopted_row r ON r.marking = m.id
                                              WHERE m.consumer = c.name)) THEN
            SELECT x.idle, x.due, x.through INTO idle, idle_due, idle_through FROM @schema@.idle(c, pull_in, now) x;
        END IF;
    END IF;
    IF idle IS NOT TRUE THEN
        waited := @schema@.lock_consumer(consumer);
        now := @schema@.clock() + waited; -- one for all of it: a claim is alive for all its parts, or for none
        SELECT * INTO c FROM @schema@.consumer x WHERE x.name = long_turn.consumer;
    END IF;
    now_ms := floor(extract(epoch FROM now) * 1000);
    IF c.name IS NULL THEN
        PERFORM @schema@.check_whole();
        RAISE EXCEPTION 'consumer "%" is not registered (any more)', long_turn.consumer USING ERRCODE = 'OB003';
    END IF;
    PERFORM @schema@.check_tenant(c);
    paused := c.paused;
    changed := coalesce(c.ordering <> long_turn.ordering OR c.lanes <> long_turn.lanes OR c.events <> long_turn.events
                        OR c.predicate <> long_turn.predicate, false);
    IF idle THEN
        IF NOT paused AND NOT changed THEN
            due := idle_due;
            through := idle_through;
        END IF;
        wait_ms := CASE WHEN due IS NULL THEN -1 ELSE greatest(ceil(extract(epoch FROM due - now) * 1000), 0) END;
        RETURN;
    END IF;
    SELECT array_agg(x ORDER BY x.lane), max(x.claims_from) INTO ls, claims_from FROM @schema@.lanes(c.name, c.lanes) x;
    IF array_length(ls, 1) IS DISTINCT FROM c.lanes + 1 THEN
        PERFORM @schema@.lost_place(c);
    END IF;
    dirty := array_fill(false, ARRAY[array_length(ls, 1)]);

    IF max_events > 0 THEN -- is this still the outbox that this consumer knows?
        IF current_user <> @schema@.caller() THEN
            PERFORM set_config('outbox.cluster', '', true); -- what a worker says of it could be anything
        END IF;
        here := @schema@.here();
        IF EXISTS (SELECT 1 FROM unnest(ls) x WHERE NOT @schema@.at_home(x.home, here)) THEN
            PERFORM @schema@.check_whole();
            trouble := @schema@.trouble();
            IF coalesce(trouble.moved, trouble.numbers) IS NOT NULL THEN
                PERFORM @schema@.make_right(coalesce(trouble.moved, trouble.numbers));
                skipped := true;
                wait_ms := -1;
                RETURN;
            ELSIF trouble.sequence IS NOT NULL THEN
                -- Numbers need not grow in the order they are taken: the floor stays where it is, which is slower and just as
                -- right. Now and then it is tried to put the sequence right, as that makes emits wait.
                IF random() < 0.02 THEN
                    BEGIN
                        PERFORM @schema@.make_right(trouble.sequence);
                        skipped := true;
                        wait_ms := -1;
                        RETURN;
                    EXCEPTION WHEN lock_not_available OR sqlstate 'OB006' THEN
                        NULL;
                    END;
                END IF;
            ELSE
                FOR i IN 1 .. array_length(ls, 1) LOOP
                    ls[i].home := here;
                    dirty[i] := true;
                END LOOP;
            END IF;
            head := NULL;
        END IF;
    END IF;

    SELECT bool_or(x.locked_until <= now), bool_or(x.locked_until > now + x.lease + slack), max(x.epoch)
    INTO expired, too_long, last_epoch
    FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch >= claims_from;
    IF too_long THEN -- a clock that was ahead when the lease was taken must not make it last for ever
        UPDATE @schema@.claim x SET locked_until = now + x.lease
        WHERE x.consumer = c.name AND x.epoch >= claims_from AND x.locked_until > now + x.lease + slack;
    END IF;
    IF expired AND NOT changed AND max_attempts > 0 THEN
        SELECT t.crashed, t.buried INTO crashed, buried FROM @schema@.take_over(c, claims_from, max_attempts, now,
                                                                                       known) t;
    END IF;

    IF settle_epoch <> 0 THEN
        SELECT * INTO k FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch = settle_epoch
           AND x.owner = long_turn.owner; -- however late: nobody has taken it over
        lost := NOT FOUND;
        IF NOT lost THEN
            i := k.lane + 2;
            ls[i].claims_from := claims_from;
            ls[i] := @schema@.settle_claim(c, ls[i], k, tried, outcomes, release_from, now);
            dirty[i] := true;
        END IF;
    END IF;

    IF max_events > 0 AND NOT changed AND NOT paused THEN
        parked := EXISTS (SELECT 1 FROM @schema@.parked x WHERE x.consumer = c.name);
        FOR step IN 1 .. 2 LOOP
            IF parked AND parked_first = (step = 1) THEN
                SELECT * INTO p FROM @schema@.claim_parked(c, owner, max_events, lease, careful_mode, pull_in, now);
                careful_due := p.careful_due;
                due := p.due;
                IF p.n > 0 THEN
                    epoch := p.epoch; lane := -1; n := p.n; careful := p.careful; from_seq := 0; to_seq := 0;
                    EXIT;
                END IF;
                EXIT WHEN careful_due AND careful_mode = 1;
            END IF;
            IF parked_first = (step = 2) AND NOT (parked AND c.ordering = 'global') THEN
                FOR j IN 0 .. c.lanes - 1 LOOP
                    i := (lane_hint + j) % c.lanes + 2;
                    IF c.ordering <> 'none' THEN
                        SELECT count(*) = 0, min(x.locked_until) INTO free, until FROM @schema@.claim x
                        WHERE x.consumer = c.name AND x.epoch >= claims_from AND x.lane = i - 2
                          AND (x.epoch = ANY (known)) IS NOT TRUE;
                        IF NOT free THEN
                            busy := true;
                            due := least(due, until);
                            CONTINUE;
                        END IF;
                    END IF;
                    f := @schema@.claim_fresh(c, ls[i], owner, max_events, lease, now, head,
                                              CASE WHEN i - 2 = ahead_lane THEN ahead_n ELSE 0 END, ahead_target, ahead_from,
                                              CASE WHEN i - 2 = ahead_lane THEN ahead_to ELSE 0 END);
                    IF f.astray IS NOT NULL THEN
                        FOR j IN 1 .. array_length(ls, 1) LOOP
                            IF dirty[j] THEN
                                PERFORM @schema@.put_lane(ls[j]);
                            END IF;
                        END LOOP;
                        PERFORM @schema@.make_right(f.astray);
                        skipped := true;
                        wait_ms := -1;
                        RETURN;
                    END IF;
                    skipped := skipped OR f.skipped;
                    IF f.changed THEN
                        ls[i] := f.l;
                        dirty[i] := true;
                    END IF;
                    IF f.n > 0 THEN
                        epoch := f.epoch; lane := i - 2; n := f.n; from_seq := f.from_seq; to_seq := ls[i].pos;
                        seen := ls[i].seen; floor := ls[i].floor; target := ls[i].target; window_end := ls[i].window_end;
                        EXIT;
                    END IF;
                END LOOP;
                EXIT WHEN n > 0;
            END IF;
        END LOOP;
        IF n > 0 AND epoch <= greatest(last_epoch, claims_from - 1) THEN
            epoch := @schema@.refence(c.name, epoch, greatest(last_epoch, claims_from - 1));
        END IF;
        IF n > 0 AND lane >= 0 AND parked AND c.ordering = 'key' THEN
            SELECT array_agg(w.seq) INTO held
            FROM @schema@.window_events(ls[lane + 2].seen, floor, ls[lane + 2].target, from_seq, to_seq, c.tenant) w
            WHERE w.aggregate_id IS NOT NULL AND EXISTS (SELECT 1 FROM @schema@.parked b
                  WHERE b.consumer = c.name AND b.key = @schema@.key('key', w.aggregate_type, w.aggregate_id));
        END IF;
        IF n = 0 THEN -- one of its own that it does not know, because the answer got lost, is waited for like one of others
            SELECT coalesce(min(x.locked_until) FILTER (WHERE x.locked_until > now
                                AND (x.owner <> long_turn.owner OR x.epoch <> ALL (known))), due), count(*) INTO until, i
            FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch >= claims_from;
            due := least(due, until);
            through := i = 0 AND NOT skipped AND NOT (parked AND EXISTS (
                SELECT 1 FROM @schema@.parked x WHERE x.consumer = c.name AND x.claim IS NULL AND x.due_at IS NOT NULL
                   AND (NOT x.delayed OR x.due_at <= now)));
        END IF;
    END IF;
    wait_ms := CASE WHEN due IS NULL THEN -1 ELSE greatest(ceil(extract(epoch FROM due - now) * 1000), 0) END;
    FOR i IN 1 .. array_length(ls, 1) LOOP
        IF dirty[i] THEN
            PERFORM @schema@.put_lane(ls[i]);
        END IF;
    END LOOP;
    IF c.marks THEN
        PERFORM @schema@.mark_adopted(c);
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@.long_turn(text, text, bigint, bigint, jsonb, bigint, int, bigint, int, int, boolean, boolean, int,
    bigint[], text, int, text, text, int, text, bigint, bigint, int, bigint) IS 'a turn, whatever has to be considered';
