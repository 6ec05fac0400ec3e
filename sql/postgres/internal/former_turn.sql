-- turn is the function that relays of version 1 (0.1.0) call. _turn has taken its place. Such a
-- relay may settle what it has, so that nothing it delivered is delivered again. If it asks for
-- more, it is refused with OB003, which makes it stop. The parameters are those of _turn, one by
-- one.
CREATE OR REPLACE FUNCTION @schema@.turn(
    consumer text, owner text,
    settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint,
    max_events int, lease_ms bigint, max_attempts int, careful_mode int, parked_first boolean,
    pull_in boolean, lane_hint int, known bigint[],
    ordering text, lanes int, events text, predicate text,
    ahead_lane int, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n int,
    OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean,
    OUT through boolean, OUT skipped boolean, OUT careful_due boolean, OUT crashed bigint,
    OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint,
    OUT epoch bigint, OUT lane int, OUT n int, OUT careful boolean, OUT held bigint[],
    OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint,
    OUT window_end bigint)
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF settle_epoch = 0 THEN
        PERFORM @schema@._refuse_version(1, 'OB003');
    END IF;
    -- This turn settles, and does nothing else: max_events 0 claims nothing, max_attempts 0 takes
    -- over nothing, and nothing was read ahead.
    SELECT t.lost, t.paused, t.changed, t.busy, t.through, t.skipped, t.careful_due, t.crashed,
           t.buried, t.wait_ms, t.now_ms, t.n, t.careful
    INTO lost, paused, changed, busy, through, skipped, careful_due, crashed,
         buried, wait_ms, now_ms, n, careful
    FROM @schema@._turn(consumer, owner, NULL,
                        ROW(settle_epoch, tried, outcomes, release_from, NULL),
                        ROW(0, lease_ms, 0, careful_mode, parked_first, false, lane_hint, known,
                            NULL, NULL, NULL, NULL),
                        ROW(-1, NULL, 0, 0, 0, NULL, NULL)) t;
END
$outbox$;
COMMENT ON FUNCTION @schema@.turn(text, text, bigint, bigint, jsonb, bigint, int, bigint, int, int,
    boolean, boolean, int, bigint[], text, int, text, text, int, text, bigint, bigint, int) IS
    'turn, for relays of version 1: they settle, and stop';
