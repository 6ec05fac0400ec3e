-- worker_turn: turn, for one who may not write the tables. A door, see admit.
CREATE OR REPLACE FUNCTION @schema@.worker_turn(
    consumer text, owner text,
    settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint,
    max_events int, lease_ms bigint, max_attempts int, careful_mode int, parked_first boolean, pull_in boolean,
    lane_hint int, known bigint[], ordering text, lanes int, events text, predicate text,
    ahead_lane int, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n int, knows int, marks jsonb,
    OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean,
    OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint,
    OUT epoch bigint, OUT lane int, OUT n int, OUT careful boolean, OUT held bigint[],
    OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    IF NOT @schema@.admit('consumer', consumer) THEN
        RAISE EXCEPTION 'consumer "%" is not registered (any more)', consumer USING ERRCODE = 'OB003';
    END IF;
    SELECT t.* INTO lost, paused, changed, busy, through, skipped, careful_due, crashed, buried, wait_ms, now_ms, epoch, lane,
                    n, careful, held, seen, floor, target, from_seq, to_seq, window_end
    FROM @schema@.turn(consumer, owner, settle_epoch, tried, outcomes, release_from, max_events, lease_ms, max_attempts,
                              careful_mode, parked_first, pull_in, lane_hint, known, ordering, lanes, events, predicate, ahead_lane,
                              ahead_target, ahead_from, ahead_to, ahead_n, knows, marks) t;
END
$outbox$;
COMMENT ON FUNCTION @schema@.worker_turn(text, text, bigint, bigint, jsonb, bigint, int, bigint, int, int, boolean, boolean, int,
    bigint[], text, int, text, text, int, text, bigint, bigint, int, int, jsonb) IS 'turn, for workers';
