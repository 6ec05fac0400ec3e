-- Ends every expired claim of consumer c, and parks its events, each with one more crash. If the
-- claim was blamed, its only event was delivered alone, and the crash counts as an attempt.
-- Otherwise it is unknown which event killed the worker: from the fourth crash on, each is retried
-- after a random delay of up to 2 s at first and about a minute at last, until the one that kills
-- is delivered alone. With an order, an expired claim waits for earlier live claims of its lanes.
-- Claims in `known` are the caller's, and not taken over, however late. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._take_over(
    c @schema@.consumer, claims_from bigint, max_attempts int, now timestamptz, known bigint[],
    OUT crashed bigint, OUT buried bigint) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k @schema@.claim;
    dead record;
    n bigint;
BEGIN
    crashed := 0;
    buried := 0;
    LOOP
        SELECT * INTO k FROM @schema@.claim x
        WHERE x.consumer = c.name AND x.epoch >= claims_from AND x.locked_until <= now
          AND (x.epoch = ANY (known)) IS NOT TRUE
          AND (x.lane = -1 OR c.ordering = 'none' OR NOT EXISTS (
               SELECT 1 FROM @schema@.claim e
               WHERE e.consumer = x.consumer AND e.epoch >= claims_from AND e.epoch < x.epoch
                 AND e.lane >= 0
                 AND @schema@._members(e.members, e.lane)
                     & @schema@._members(x.members, x.lane) <> 0
                 AND (e.locked_until > now OR e.epoch = ANY (known))))
        ORDER BY x.epoch LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF k.lane = -1 THEN
            SELECT count(*) AS n, array_agg(x.seq) AS seqs, array_agg(x.attempts + 1) AS attempts,
                   array_agg('the process died, or lost its lease, '
                             'while delivering this event'::text) AS errors,
                   array_agg(x.key) AS keys
            INTO dead
            FROM @schema@.parked x
            WHERE x.ctid = ANY (@schema@._claimed_rows(k))
              AND k.blamed AND x.attempts + 1 >= max_attempts;
            IF dead.n > 0 THEN
                PERFORM @schema@._bury(c.name, dead.seqs, dead.attempts, dead.errors);
                PERFORM @schema@._promote(c.name, dead.keys, now);
                buried := buried + dead.n;
            END IF;
            UPDATE @schema@.parked x
            SET claim = NULL, crashes = x.crashes + 1, attempts = x.attempts + k.blamed::int,
                due_at = CASE WHEN p.apart > '0' AND x.due_at IS NOT NULL THEN now + p.apart
                              ELSE x.due_at END,
                wait = greatest(x.wait, p.apart)
            FROM (SELECT y.ctid AS at, CASE WHEN k.blamed OR y.crashes < 3 THEN interval '0'
                      ELSE random() * interval '1 s' * (1 << least(y.crashes - 2, 6)) END AS apart
                  FROM @schema@.parked y WHERE y.ctid = ANY (@schema@._claimed_rows(k))) p
            WHERE x.ctid = p.at;
        ELSE
            INSERT INTO @schema@.parked (consumer, seq, key, attempts, due_at, crashes, delayed)
            SELECT c.name, w.seq, w.key, 0,
                   CASE WHEN w.key = 0 OR w.nth = 1 AND @include waits_behind(c.name, w)@ IS NULL
                        THEN greatest(now, least(coalesce(w.not_before, now),
                                                 now + interval '3653 days')) END,
                   1, coalesce(w.not_before > now, false)
            FROM (SELECT e.seq, e.not_before, y.key,
                         row_number() OVER (PARTITION BY y.key ORDER BY e.seq) AS nth
                  FROM @schema@._window_events(k.seen, k.floor, k.target, k.from_seq, k.to_seq,
                                               c.tenant) e,
                       LATERAL (SELECT @schema@._key(c.ordering, e.aggregate_type,
                                                     e.aggregate_id) AS key) y
                  WHERE (c.type_like IS NULL OR e.type LIKE ANY (c.type_like))
                    AND @schema@._is_member(k.members, k.lane,
                            @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id))) w
            ON CONFLICT DO NOTHING; -- already parked by mistake: must not block its key forever
        END IF;
        GET DIAGNOSTICS n = ROW_COUNT;
        IF k.lane >= 0 THEN
            PERFORM @schema@._note_take_over(c, k);
            UPDATE @schema@.parked x SET claim = NULL
            WHERE x.ctid = ANY (@schema@._claimed_rows(k));
        END IF;
        crashed := crashed + n;
        DELETE FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch = k.epoch;
    END LOOP;
END $outbox$;

-- Records how the events of claim k end if the consumer's filter was replaced after the claim was
-- made: for them the present filter decides, for all other events up to there the former one.
CREATE OR REPLACE FUNCTION @schema@._note_take_over(c @schema@.consumer, k @schema@.claim)
RETURNS void LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    f @schema@.former_filter;
BEGIN
    SELECT * INTO f FROM @schema@.former_filter x WHERE x.consumer = c.name AND x.epoch >= k.epoch
    ORDER BY x.n, x.lane LIMIT 1;
    IF NOT FOUND THEN RETURN; END IF;

    -- An event that neither filter matches is skipped either way, and needs no row.
    INSERT INTO @schema@.ended (seq, consumer, state)
    SELECT w.seq, c.name, CASE WHEN m.wanted THEN 'delivered' ELSE 'skipped' END
    FROM @schema@._window_events(k.seen, k.floor, k.target, k.from_seq, k.to_seq, c.tenant) w,
         LATERAL (SELECT c.type_like IS NULL OR w.type LIKE ANY (c.type_like) AS wanted,
                         f.type_like IS NULL OR w.type LIKE ANY (f.type_like) AS was_wanted) m
    WHERE @schema@._is_member(k.members, k.lane,
              @schema@._lane_of(c.lanes, w.seq, w.aggregate_type, w.aggregate_id))
      AND (m.wanted OR m.was_wanted)
    ON CONFLICT DO NOTHING;
END $outbox$;
