-- _keep_filter: the consumer's filter is about to be replaced: notes how far it has got, since what was handed out up to here was
-- judged by it. Nothing to note if nobody was handed anything since the last one was. Under lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._keep_filter(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    last bigint := (SELECT max(f.n) FROM @schema@.former_filter f WHERE f.consumer = c.name);
BEGIN
    IF NOT EXISTS (SELECT 1 FROM @schema@._lanes(c.name, c.lanes) l WHERE l.lane >= 0 AND NOT EXISTS (
            SELECT 1 FROM @schema@.former_filter f WHERE f.consumer = c.name AND f.n = last AND f.lane = l.lane
               AND f.lanes = c.lanes AND (f.seen::text, f.floor, f.target::text, f.pos)
                   IS NOT DISTINCT FROM (l.seen::text, l.floor, l.target::text, l.pos))) THEN
        RETURN;
    END IF;
    INSERT INTO @schema@.former_filter (consumer, n, lane, lanes, events, type_like, predicate, epoch, seen, floor, target, pos,
                                        head)
    SELECT c.name, coalesce(last, 0) + 1, l.lane, c.lanes, c.events, c.type_like, c.predicate,
           (coalesce(pg_sequence_last_value('@schema@.epoch'), 0) << 20) | 1048575, l.seen, l.floor, l.target, l.pos,
           coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0)
    FROM @schema@._lanes(c.name, c.lanes) l WHERE l.lane >= 0;
END
$outbox$;
COMMENT ON FUNCTION @schema@._keep_filter(@schema@.consumer) IS 'notes how far a filter was used';
