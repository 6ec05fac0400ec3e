-- _note_passed: takes a sample of how far every consumer has got, if the last one is as old as `every`. Samples that have become
-- untrue go: those ahead of where a consumer is (its place went back), and of consumers that are gone. One from the future, by a
-- clock that was wrong, says no more than that it was so by now. Of those at or before `cutoff` the last of each consumer tells all.
CREATE OR REPLACE FUNCTION @schema@._note_passed(now timestamptz, cutoff timestamptz, every interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    f record;
    shown pg_snapshot;
BEGIN
    UPDATE @schema@.passed x SET at = now WHERE x.at > now;
    FOR f IN SELECT c.name, coalesce(x.floor, 0) AS floor FROM @schema@.consumer c LEFT JOIN @schema@._floors() x ON x.consumer = c.name LOOP
        DELETE FROM @schema@.passed x WHERE x.consumer = f.name AND x.seq > f.floor;
        CONTINUE WHEN f.floor <= 0 OR EXISTS (SELECT 1 FROM @schema@.passed x WHERE x.consumer = f.name AND x.at > now - every);
        shown := @schema@._passed_snapshot(f.name, f.floor);
        CONTINUE WHEN EXISTS (SELECT 1 FROM @schema@.passed x WHERE x.consumer = f.name AND x.seq = f.floor AND NOT EXISTS (
            SELECT 1 FROM pg_snapshot_xip(x.seen) late WHERE pg_visible_in_snapshot(late, shown))); -- it would say nothing new
        INSERT INTO @schema@.passed (consumer, seq, seen, at) VALUES (f.name, f.floor, shown, now) ON CONFLICT DO NOTHING;
    END LOOP;
    DELETE FROM @schema@.passed x WHERE NOT EXISTS (SELECT 1 FROM @schema@.consumer c WHERE c.name = x.consumer)
        OR EXISTS (SELECT 1 FROM @schema@.passed y WHERE y.consumer = x.consumer AND (y.seq, y.at) > (x.seq, x.at) AND y.at <= cutoff);
END
$outbox$;
COMMENT ON FUNCTION @schema@._note_passed(timestamptz, timestamptz, interval) IS 'takes a sample of how far consumers have got';

-- _passed_snapshot: of the events up to a consumer's floor, what it shows is done with. Up to the floor of a lane that is all but
-- what was running when the lane looked; in a window all that the window shows.
CREATE OR REPLACE FUNCTION @schema@._passed_snapshot(consumer text, floor bigint) RETURNS pg_snapshot
LANGUAGE sql STABLE AS $outbox$
    SELECT @schema@._common_snapshot(array_agg(s.seen)) FROM (
        SELECT CASE WHEN l.target IS NOT NULL AND l.pos >= $2 THEN l.target ELSE @schema@._all_but_running(l.seen) END AS seen
        FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l WHERE c.name = $1 AND l.lane >= 0
        UNION ALL -- late events of a claim are below its floor
        SELECT @schema@._all_but_running(k.seen) FROM @schema@.claim k WHERE k.consumer = $1 AND k.lane >= 0 AND k.from_seq < $2) s
$outbox$;
COMMENT ON FUNCTION @schema@._passed_snapshot(text, bigint) IS 'which events up to a floor a consumer is done with';

-- _all_but_running: a snapshot that shows all that has begun by now, but for what ran at the time of the given one.
CREATE OR REPLACE FUNCTION @schema@._all_but_running(seen pg_snapshot) RETURNS pg_snapshot
LANGUAGE sql STABLE AS $outbox$
    SELECT concat(coalesce(min(x::text::bigint), m.xmax), ':', m.xmax, ':', string_agg(x::text, ',' ORDER BY x))::pg_snapshot
    FROM (SELECT greatest(pg_snapshot_xmax($1), pg_snapshot_xmax(pg_current_snapshot()))::text::bigint AS xmax) m
    LEFT JOIN LATERAL pg_snapshot_xip($1) AS x ON true GROUP BY m.xmax
$outbox$;
COMMENT ON FUNCTION @schema@._all_but_running(pg_snapshot) IS 'what runs in a snapshot, and nothing else, is not shown';

-- _common_snapshot: a snapshot that shows what all of them show.
CREATE OR REPLACE FUNCTION @schema@._common_snapshot(seen pg_snapshot[]) RETURNS pg_snapshot
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT concat(coalesce(min(r.xid), m.xmax), ':', m.xmax, ':', string_agg(r.xid::text, ',' ORDER BY r.xid))::pg_snapshot
    FROM (SELECT min(pg_snapshot_xmax(s)::text::bigint) AS xmax FROM unnest($1) s) m
    LEFT JOIN LATERAL (SELECT DISTINCT x::text::bigint AS xid FROM unnest($1) s, pg_snapshot_xip(s) AS x
                       WHERE x::text::bigint < m.xmax) r ON true
    WHERE m.xmax IS NOT NULL GROUP BY m.xmax
$outbox$;
COMMENT ON FUNCTION @schema@._common_snapshot(pg_snapshot[]) IS 'what all of these snapshots show';

-- _passed_by: what every consumer was done with at a time: events up to seq that `seen` shows. seq 0: nothing. What was before a
-- consumer's start never was anything to it.
CREATE OR REPLACE FUNCTION @schema@._passed_by(cutoff timestamptz, OUT seq bigint, OUT seen pg_snapshot)
LANGUAGE sql STABLE AS $outbox$
    SELECT coalesce(min(x.seq), 0), @schema@._common_snapshot(array_agg(x.seen))
    FROM (SELECT greatest(p.seq, c.start_floor, 0) AS seq,
                 CASE WHEN p.seq >= coalesce(c.start_floor, 0) THEN p.seen ELSE @schema@._all_but_running(c.start_seen) END AS seen
          FROM @schema@.consumer c LEFT JOIN @schema@._floors() f ON f.consumer = c.name
          LEFT JOIN LATERAL (SELECT y.seq, y.seen FROM @schema@.passed y
                             WHERE y.consumer = c.name AND y.at <= cutoff AND y.seq <= f.floor ORDER BY y.seq DESC, y.at DESC LIMIT 1) p ON true) x
$outbox$;
COMMENT ON FUNCTION @schema@._passed_by(timestamptz) IS 'what every consumer was done with at a time';

-- _passed_since: when the last consumer was done with an event, as far as a sample tells; NULL: none does.
CREATE OR REPLACE FUNCTION @schema@._passed_since(xid xid8, seq bigint) RETURNS timestamptz
LANGUAGE sql STABLE AS $outbox$
    SELECT CASE WHEN bool_and(x.at IS NOT NULL) THEN max(x.at) END
    FROM (SELECT CASE WHEN @schema@._before_start(c.start_seen, c.start_floor, c.start_also, $1, $2) THEN timestamptz 'epoch'
                      ELSE (SELECT min(y.at) FROM @schema@.passed y WHERE y.consumer = c.name AND y.seq >= $2
                                                                      AND pg_visible_in_snapshot($1, y.seen)) END AS at
          FROM @schema@.consumer c) x
$outbox$;
COMMENT ON FUNCTION @schema@._passed_since(xid8, bigint) IS 'when the last consumer was done with an event, by the samples';
