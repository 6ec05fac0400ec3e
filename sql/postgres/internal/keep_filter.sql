-- _keep_filter records in former_filter how far consumer c has got with its filter, which is about
-- to be replaced. Whatever was handed out up to there was judged by that filter. If no lane has
-- moved since the last filter was replaced, there is nothing to record. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._keep_filter(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    last bigint := (SELECT max(f.n) FROM @schema@.former_filter f WHERE f.consumer = c.name);
BEGIN
    -- Snapshots have no operators to compare them, so their texts are compared.
    IF NOT EXISTS (SELECT 1
                   FROM @schema@._lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0
                     AND NOT EXISTS (
                         SELECT 1 FROM @schema@.former_filter f
                         WHERE f.consumer = c.name AND f.n = last AND f.lane = l.lane
                           AND f.lanes = c.lanes
                           AND (f.seen::text, f.floor, f.target::text, f.pos)
                               IS NOT DISTINCT FROM
                               (l.seen::text, l.floor, l.target::text, l.pos))) THEN
        RETURN;
    END IF;

    -- The epoch is the highest one that can have been given out so far: claims up to it were made
    -- under this filter.
    INSERT INTO @schema@.former_filter (consumer, n, lane, lanes, events, type_like, predicate,
                                        epoch, seen, floor, target, pos, head)
    SELECT c.name, coalesce(last, 0) + 1, l.lane, c.lanes, c.events, c.type_like, c.predicate,
           (coalesce(pg_sequence_last_value('@schema@.epoch'), 0) << 20) | 1048575,
           l.seen, l.floor, l.target, l.pos,
           coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0)
    FROM @schema@._lanes(c.name, c.lanes) l
    WHERE l.lane >= 0;
END
$outbox$;
COMMENT ON FUNCTION @schema@._keep_filter(@schema@.consumer) IS
    'records how far a filter was used';
