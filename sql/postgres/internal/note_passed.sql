-- _note_passed takes a sample of how far every consumer has got, unless the last sample is younger
-- than `every`. A sample says that at that time a consumer was done with the events up to seq that
-- `seen` shows. By these samples trim keeps events for some time after everybody has had them.
--
-- Samples that are no longer true are deleted: those ahead of where a consumer is now (its place
-- went back), and those of consumers that are gone. Of the samples at or before `cutoff`, the last
-- one of each consumer tells all there is to know, and the others are deleted, too.
CREATE OR REPLACE FUNCTION @schema@._note_passed(
    now timestamptz, cutoff timestamptz, every interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    f record;
    shown pg_snapshot;
BEGIN
    -- A sample from the future was taken while the clock was wrong. All it proves is that the
    -- consumer has come that far by now.
    UPDATE @schema@.passed x SET at = now WHERE x.at > now;

    FOR f IN SELECT c.name, coalesce(x.floor, 0) AS floor
             FROM @schema@.consumer c LEFT JOIN @schema@._floors() x ON x.consumer = c.name LOOP
        DELETE FROM @schema@.passed x WHERE x.consumer = f.name AND x.seq > f.floor;
        -- Too early for a new one?
        CONTINUE WHEN f.floor <= 0
                   OR EXISTS (SELECT 1 FROM @schema@.passed x
                              WHERE x.consumer = f.name AND x.at > now - every);
        shown := @schema@._passed_snapshot(f.name, f.floor);
        -- Would it say more than the last one? Not with the same seq, unless transactions that were
        -- late then have ended since.
        CONTINUE WHEN EXISTS (
            SELECT 1 FROM @schema@.passed x
            WHERE x.consumer = f.name AND x.seq = f.floor
              AND NOT EXISTS (SELECT 1 FROM pg_snapshot_xip(x.seen) late
                              WHERE pg_visible_in_snapshot(late, shown)));
        INSERT INTO @schema@.passed (consumer, seq, seen, at) VALUES (f.name, f.floor, shown, now)
        ON CONFLICT DO NOTHING;
    END LOOP;

    -- Samples of removed consumers, and all up to the cutoff but the last.
    DELETE FROM @schema@.passed x
    WHERE NOT EXISTS (SELECT 1 FROM @schema@.consumer c WHERE c.name = x.consumer)
       OR EXISTS (SELECT 1 FROM @schema@.passed y
                  WHERE y.consumer = x.consumer AND (y.seq, y.at) > (x.seq, x.at)
                    AND y.at <= cutoff);
END
$outbox$;
COMMENT ON FUNCTION @schema@._note_passed(timestamptz, timestamptz, interval) IS
    'takes a sample of how far consumers have got';

-- _passed_snapshot returns a snapshot: of the events up to a consumer's floor, what it shows is
-- done with. For a lane between windows that is everything but what was running when the lane
-- looked; for one that is past the floor in its window, everything that the window shows.
CREATE OR REPLACE FUNCTION @schema@._passed_snapshot(consumer text, floor bigint)
RETURNS pg_snapshot
LANGUAGE sql STABLE AS $outbox$
    SELECT @schema@._common_snapshot(array_agg(s.seen))
    FROM (SELECT CASE WHEN l.target IS NOT NULL AND l.pos >= _passed_snapshot.floor THEN l.target
                      ELSE @schema@._all_but_running(l.seen) END AS seen
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
          WHERE c.name = _passed_snapshot.consumer AND l.lane >= 0
          UNION ALL -- late events of a claim are below its floor
          SELECT @schema@._all_but_running(k.seen) FROM @schema@.claim k
          WHERE k.consumer = _passed_snapshot.consumer AND k.lane >= 0
            AND k.from_seq < _passed_snapshot.floor) s
$outbox$;
COMMENT ON FUNCTION @schema@._passed_snapshot(text, bigint) IS
    'which events up to a floor a consumer is done with';

-- _all_but_running returns a snapshot that shows everything that has begun by now, except what was
-- running in `seen`.
CREATE OR REPLACE FUNCTION @schema@._all_but_running(seen pg_snapshot) RETURNS pg_snapshot
LANGUAGE sql STABLE AS $outbox$
    SELECT concat(coalesce(min(x::text::bigint), m.xmax), ':', m.xmax, ':',
                  string_agg(x::text, ',' ORDER BY x))::pg_snapshot
    FROM (SELECT greatest(pg_snapshot_xmax(_all_but_running.seen),
                          pg_snapshot_xmax(pg_current_snapshot()))::text::bigint AS xmax) m
    LEFT JOIN LATERAL pg_snapshot_xip(_all_but_running.seen) AS x ON true
    GROUP BY m.xmax
$outbox$;
COMMENT ON FUNCTION @schema@._all_but_running(pg_snapshot) IS
    'what runs in a snapshot, and nothing else, is not shown';

-- _common_snapshot returns a snapshot that shows what all of `seen` show, or NULL if there are
-- none.
CREATE OR REPLACE FUNCTION @schema@._common_snapshot(seen pg_snapshot[]) RETURNS pg_snapshot
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT concat(coalesce(min(r.xid), m.xmax), ':', m.xmax, ':',
                  string_agg(r.xid::text, ',' ORDER BY r.xid))::pg_snapshot
    FROM (SELECT min(pg_snapshot_xmax(s)::text::bigint) AS xmax
          FROM unnest(_common_snapshot.seen) s) m
    LEFT JOIN LATERAL (SELECT DISTINCT x::text::bigint AS xid
                       FROM unnest(_common_snapshot.seen) s, pg_snapshot_xip(s) AS x
                       WHERE x::text::bigint < m.xmax) r ON true
    WHERE m.xmax IS NOT NULL
    GROUP BY m.xmax
$outbox$;
COMMENT ON FUNCTION @schema@._common_snapshot(pg_snapshot[]) IS 'what all of these snapshots show';

-- _passed_by returns what every consumer was done with at time `cutoff`: the events up to seq that
-- `seen` shows. seq 0: nothing. Events before a consumer's start were never any of its business, so
-- they count as passed.
CREATE OR REPLACE FUNCTION @schema@._passed_by(
    cutoff timestamptz, OUT seq bigint, OUT seen pg_snapshot)
LANGUAGE sql STABLE AS $outbox$
    SELECT coalesce(min(x.seq), 0), @schema@._common_snapshot(array_agg(x.seen))
    FROM (SELECT greatest(p.seq, c.start_floor, 0) AS seq,
                 CASE WHEN p.seq >= coalesce(c.start_floor, 0) THEN p.seen
                      ELSE @schema@._all_but_running(c.start_seen) END AS seen
          FROM @schema@.consumer c
          LEFT JOIN @schema@._floors() f ON f.consumer = c.name
          LEFT JOIN LATERAL (SELECT y.seq, y.seen FROM @schema@.passed y
                             WHERE y.consumer = c.name AND y.at <= cutoff AND y.seq <= f.floor
                             ORDER BY y.seq DESC, y.at DESC LIMIT 1) p ON true) x
$outbox$;
COMMENT ON FUNCTION @schema@._passed_by(timestamptz) IS
    'what every consumer was done with at a time';

-- _passed_since returns when the last consumer was done with an event, as far as samples tell, or
-- NULL if none tells.
CREATE OR REPLACE FUNCTION @schema@._passed_since(xid xid8, seq bigint) RETURNS timestamptz
LANGUAGE sql STABLE AS $outbox$
    SELECT CASE WHEN bool_and(x.at IS NOT NULL) THEN max(x.at) END
    FROM (SELECT CASE WHEN @schema@._before_start(c.start_seen, c.start_floor, c.start_also,
                                                  _passed_since.xid, _passed_since.seq)
                      THEN timestamptz 'epoch'
                      ELSE (SELECT min(y.at) FROM @schema@.passed y
                            WHERE y.consumer = c.name AND y.seq >= _passed_since.seq
                              AND pg_visible_in_snapshot(_passed_since.xid, y.seen)) END AS at
          FROM @schema@.consumer c) x
$outbox$;
COMMENT ON FUNCTION @schema@._passed_since(xid8, bigint) IS
    'when the last consumer was done with an event, by the samples';
