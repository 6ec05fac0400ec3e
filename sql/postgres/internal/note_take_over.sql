-- _note_take_over records what becomes of the events of claim k, whose worker vanished, if the
-- claim was made under a filter that has been replaced since. Events that the present filter wants
-- will be delivered, and the others never. The former filter, which answers this for all other
-- events, would be wrong about these. Usually there is no such filter.
CREATE OR REPLACE FUNCTION @schema@._note_take_over(c @schema@.consumer, k @schema@.claim)
RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    f @schema@.former_filter;
BEGIN
    -- The first filter that was replaced after the claim was made.
    SELECT * INTO f FROM @schema@.former_filter x
    WHERE x.consumer = c.name AND x.epoch >= k.epoch
    ORDER BY x.n, x.lane LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;

    -- What neither filter wants is skipped by both, and needs no note.
    INSERT INTO @schema@.ended (seq, consumer, state)
    SELECT w.seq, c.name, CASE WHEN m.wanted THEN 'delivered' ELSE 'skipped' END
    FROM @schema@._window_events(k.seen, k.floor, k.target, k.from_seq, k.to_seq, c.tenant) w,
         LATERAL (SELECT c.type_like IS NULL OR w.type LIKE ANY (c.type_like) AS wanted,
                         f.type_like IS NULL OR w.type LIKE ANY (f.type_like) AS was_wanted) m
    WHERE @schema@._is_member(k.members, k.lane,
              @schema@._lane_of(c.lanes, w.seq, w.aggregate_type, w.aggregate_id))
      AND (m.wanted OR m.was_wanted)
    ON CONFLICT DO NOTHING;
END
$outbox$;
COMMENT ON FUNCTION @schema@._note_take_over(@schema@.consumer, @schema@.claim) IS
    'notes what a former filter no longer tells';
