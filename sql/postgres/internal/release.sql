-- _release gives back the events of claim k from release_from on, which were never tried. If
-- nothing was handed out after them, lane l goes back to where they begin; otherwise they are
-- parked. Returns the lane, which the caller stores.
CREATE OR REPLACE FUNCTION @schema@._release(
    c @schema@.consumer, INOUT l @schema@.lane, k @schema@.claim, release_from bigint,
    now timestamptz)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    seqs bigint[];
    n int;
    -- Whether nothing was handed out after the claim: the lane still stands at its end.
    last boolean := l.pos = k.to_seq AND l.target::text = k.target::text;
BEGIN
    -- Where order is kept, the lane may also be further on over events that were only skipped.
    IF NOT coalesce(last, false) AND c.ordering <> 'none' THEN
        last := NOT EXISTS (SELECT 1 FROM @schema@.claim x
                            WHERE x.consumer = c.name AND x.epoch > k.epoch AND x.lane >= 0
                              AND @schema@._members(x.members, x.lane)
                                  & @schema@._members(k.members, k.lane) <> 0);
    END IF;
    -- Lanes that have joined others since, or were split off, cannot be moved back alone.
    last := last AND l.leader IS NULL
            AND @schema@._members(l.members, l.lane) = @schema@._members(k.members, k.lane);

    IF last THEN
        l.seen := k.seen;
        l.floor := k.floor;
        l.target := k.target;
        l.next_floor := k.next_floor;
        l.window_end := k.window_end;
        l.pos := greatest(k.from_seq, release_from - 1);
        RETURN;
    END IF;

    -- Parked as "behind": they wait for their turn, with no attempt used.
    SELECT array_agg(w.seq ORDER BY w.seq) INTO seqs
    FROM @schema@._window_events(k.seen, k.floor, k.target, greatest(k.from_seq, release_from - 1),
                                 k.to_seq, c.tenant) w
    WHERE (c.type_like IS NULL OR w.type LIKE ANY (c.type_like))
      AND @schema@._is_member(k.members, k.lane,
              @schema@._lane_of(c.lanes, w.seq, w.aggregate_type, w.aggregate_id));
    n := coalesce(array_length(seqs, 1), 0);
    PERFORM @schema@._park(c, seqs, array_fill('behind'::text, ARRAY[n]), array_fill(0, ARRAY[n]),
                           NULL, NULL, NULL, now)
    WHERE n > 0;
    -- A predicate, which only the relay can apply, may exclude some of them: they come one by one,
    -- and it is applied then.
    UPDATE @schema@.parked p SET crashes = 1
    WHERE coalesce(c.predicate, '') <> '' AND p.consumer = c.name AND p.seq = ANY (seqs);
END
$outbox$;
COMMENT ON FUNCTION @schema@._release(
    @schema@.consumer, @schema@.lane, @schema@.claim, bigint, timestamptz) IS
    'gives events of a claim back';
