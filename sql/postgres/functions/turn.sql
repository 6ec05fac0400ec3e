-- turn: all that a worker does in one transaction, and one round trip: takes over what expired, settles a claim, claims
-- the next. In that order: what an expired claim held must be parked before what waits behind it. The relay calls this;
-- claim and settle are its simple faces.
--
-- settle_epoch 0: nothing to settle. tried: how many of that claim's events were not given back. max_events 0: claim
-- nothing. max_attempts 0: take over nothing. ordering NULL: don't check that order, lanes, events and predicate are still
-- those registered; otherwise, if they are not, `changed` says so and nothing is claimed: what another filter passes over
-- would be lost. known: epochs of the fresh claims the worker has in hand; one it does not know, because the answer got
-- lost, keeps its lane busy until the lease has run out. For ahead_* see claim_fresh, for careful_mode and pull_in
-- claim_parked.
--
-- knows: the version of the outbox that the worker was written for. One of another version may settle what it has, so that
-- nothing is delivered again that it delivered, and is refused when it asks for more: it stops in order. So a settlement has
-- to be understood by the functions of the next version. NULL: whoever calls does not claim.
-- marks: how far streams were written, see put_marks.
--
-- The owner of the tables does all this by himself; others have no right to write them, and go through worker_turn, which comes
-- back here if they may.
--
-- Mostly nothing has to be considered: the claim was delivered whole, what comes next was read ahead, no row of an adopted table
-- is to be marked, and nobody else is about. Then the claim becomes the next one and the lane moves on, three statements in all; long_turn does the rest.
CREATE OR REPLACE FUNCTION @schema@.turn(
    consumer text, owner text,
    settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint,
    max_events int, lease_ms bigint, max_attempts int, careful_mode int, parked_first boolean, pull_in boolean,
    lane_hint int, known bigint[], ordering text, lanes int, events text, predicate text,
    ahead_lane int, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n int, knows int, marks jsonb DEFAULT NULL,
    OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean,
    OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint,
    OUT epoch bigint, OUT lane int, OUT n int, OUT careful boolean, OUT held bigint[],
    OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    now timestamptz;
    l @schema@.lane;
    there text;
    head bigint;
    last bigint;
    locked boolean := false;
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        SELECT t.* INTO lost, paused, changed, busy, through, skipped, careful_due, crashed, buried, wait_ms, now_ms, epoch, lane,
                    n, careful, held, seen, floor, target, from_seq, to_seq, window_end
        FROM @schema@.worker_turn(consumer, owner, settle_epoch, tried, outcomes, release_from, max_events, lease_ms, max_attempts,
                              careful_mode, parked_first, pull_in, lane_hint, known, ordering, lanes, events, predicate, ahead_lane,
                              ahead_target, ahead_from, ahead_to, ahead_n, knows, marks) t;
        RETURN;
    END IF;
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0); -- for claim_fresh, before anything is written
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        -- What is handed out must be on disk first: this commit takes along what was committed before it. So must the effects
        -- of a handler, which share its transaction.
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF ahead_n BETWEEN 1 AND max_events AND ahead_lane = 0 AND turn.lanes = 1 AND outcomes = '[]' AND release_from = 0
       AND current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM 1 FROM @schema@.consumer c WHERE c.name = turn.consumer FOR NO KEY UPDATE SKIP LOCKED; -- as in lock_consumer
        locked := FOUND;
    END IF;
    IF locked THEN
        now := @schema@.clock();
        SELECT x.* INTO l
        FROM @schema@.meta m, @schema@.consumer c, LATERAL (SELECT * FROM @schema@.lane y WHERE y.consumer = c.name AND y.lane = 0
                                           ORDER BY y.version DESC LIMIT 1) AS x
        WHERE m.name = 'schema_version' AND m.value = knows::text AND c.name = turn.consumer AND c.ordering = turn.ordering AND c.lanes = 1 AND c.events = turn.events
          AND c.predicate = turn.predicate AND NOT c.paused AND NOT c.marks AND c.tenant = coalesce(current_setting('outbox.tenant', true), '')
          AND (c.tenant = '' OR row_security_active('@schema@.event') OR current_user <> @schema@.caller())
          AND x.pos = ahead_from AND x.target::text = ahead_target AND ahead_to BETWEEN ahead_from + 1 AND x.window_end
          AND NOT EXISTS (SELECT 1 FROM @schema@.parked p WHERE p.consumer = c.name);
        UPDATE @schema@.claim k
        SET epoch = @schema@.next_epoch(), seen = l.seen, floor = l.floor, target = l.target, next_floor = l.next_floor,
            window_end = l.window_end, from_seq = ahead_from, to_seq = ahead_to,
            locked_until = now + lease_ms * interval '1 millisecond', lease = lease_ms * interval '1 millisecond'
        WHERE k.consumer = l.consumer AND k.epoch = settle_epoch AND k.owner = turn.owner AND k.locked_until > now AND k.lane = 0
          AND NOT EXISTS (SELECT 1 FROM @schema@.claim o WHERE o.consumer = l.consumer AND o.epoch >= l.claims_from
                             AND o.epoch <> settle_epoch AND (o.epoch = ANY (known) AND o.locked_until > now
                                  AND o.locked_until <= now + o.lease + interval '1 s') IS NOT TRUE)
        RETURNING k.epoch INTO epoch;
        IF FOUND THEN
            IF epoch <= settle_epoch OR epoch <= ANY (known) THEN -- known is what the worker says: only claims there are count
                last := (SELECT max(k.epoch) FROM @schema@.claim k WHERE k.consumer = l.consumer AND k.epoch <> turn.epoch);
                IF epoch <= greatest(settle_epoch, last) THEN
                    epoch := @schema@.refence(l.consumer, epoch, greatest(settle_epoch, last));
                END IF;
            END IF;
            UPDATE @schema@.lane x
            SET version = l.version + 1, pos = ahead_to, delivered = l.delivered + tried, claims_from =
                (SELECT min(k.epoch) FROM @schema@.claim k WHERE k.consumer = l.consumer AND k.epoch >= l.claims_from)
            WHERE x.consumer = l.consumer AND x.lane = 0 AND x.version = l.version;
            IF marks IS NOT NULL THEN
                PERFORM @schema@.put_marks(l.consumer, marks);
            END IF;
            SELECT false, false, false, false, false, false, false, 0, 0, -1, floor(extract(epoch FROM now) * 1000),
                   0, ahead_n, false, l.seen, l.floor, ahead_target, ahead_from, ahead_to, l.window_end
            INTO lost, paused, changed, busy, through, skipped, careful_due, crashed, buried, wait_ms, now_ms,
                 lane, n, careful, seen, floor, target, from_seq, to_seq, window_end;
            RETURN;
        END IF;
    END IF;
    SELECT m.value INTO there FROM @schema@.meta m WHERE m.name = 'schema_version';
    IF there <> knows::text THEN
        IF settle_epoch = 0 THEN
            PERFORM @schema@.refuse_version(knows);
        END IF;
        max_events := 0;
    END IF;
    SELECT t.* INTO lost, paused, changed, busy, through, skipped, careful_due, crashed, buried, wait_ms, now_ms, epoch, lane,
                    n, careful, held, seen, floor, target, from_seq, to_seq, window_end
    FROM @schema@.long_turn(consumer, owner, settle_epoch, tried, outcomes, release_from, max_events, lease_ms,
                            max_attempts, careful_mode, parked_first, pull_in, lane_hint, known, ordering, lanes, events,
                            predicate, ahead_lane, ahead_target, ahead_from, ahead_to, ahead_n, head) t;
    IF marks IS NOT NULL THEN
        PERFORM @schema@.put_marks(consumer, marks);
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@.turn(text, text, bigint, bigint, jsonb, bigint, int, bigint, int, int, boolean, boolean, int,
    bigint[], text, int, text, text, int, text, bigint, bigint, int, int, jsonb) IS 'one transaction of a worker: take over, settle, claim';
