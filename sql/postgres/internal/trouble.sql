-- _trouble says whether this is still the outbox that its lanes know. Each answer is NULL, or says
-- what is wrong.
--
-- moved: it came from another cluster, so transaction numbers mean nothing here.
--
-- numbers: event numbers began again below what somebody knows (TRUNCATE ... RESTART IDENTITY,
-- setval, a cut-over by logical replication, which copies no sequences), so that a position would
-- pass over new events. Or somebody brought in events with the transaction numbers they had
-- elsewhere, or once had here (a restore of single tables): those would be taken for seen.
--
-- sequence: event numbers need not grow in the order they are taken (CACHE), or will end.
--
-- It probes indexes, and looks at samples: rebaseline, which puts this right, looks at all events.
-- Most consumers stand at the same place, and what is asked of events is asked once for a place: a
-- relay with a thousand consumers asks whenever it registers one of them.
CREATE OR REPLACE FUNCTION @schema@._trouble(OUT moved text, OUT numbers text, OUT sequence text)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $outbox$
DECLARE
    cluster text := @schema@._home();
    here text := @schema@._here();
    own xid8 := pg_current_xact_id_if_assigned();
    s record;   -- how the sequence of event numbers is defined
    k record;   -- what consumers know
    top bigint;
    head bigint;
BEGIN
    -- What do consumers know, and what was given out? What is known is read first, because the head
    -- only grows meanwhile.
    WITH place AS MATERIALIZED (
        SELECT min(c.name) AS name, l.lane >= 0 AS reads, l.home, l.window_end, o.seq AS reached,
               l.seen::text AS seen, coalesce(l.target, l.seen)::text AS shown
        FROM @schema@.consumer c
        CROSS JOIN LATERAL @schema@._places(c.name, c.lanes) l
        CROSS JOIN LATERAL @schema@._reached(c, l) AS o (seq)
        WHERE l.leader IS NULL -- else its place is that of its leader
        GROUP BY 2, 3, 4, 5, 6, 7),
    -- Who knows the highest number?
    knows AS (
        SELECT x.name, x.seq
        FROM (SELECT l.name, l.window_end AS seq FROM place l
              UNION ALL
              SELECT c.name, greatest(p.seq, d.seq, r.seq)
              FROM @schema@.consumer c
              CROSS JOIN LATERAL (SELECT max(x.seq) AS seq FROM @schema@.parked x
                                  WHERE x.consumer = c.name) p
              CROSS JOIN LATERAL (SELECT max(x.seq) AS seq FROM @schema@.dead x
                                  WHERE x.consumer = c.name) d
              CROSS JOIN LATERAL (SELECT max(x.seq) AS seq FROM @schema@.receipt x
                                  WHERE x.consumer = c.name) r) x
        ORDER BY x.seq DESC NULLS LAST LIMIT 1),
    -- Two events are looked at for each place: the first that is new there, by transaction, and the
    -- last one up to the number that was reached. Neither may be new and have been reached.
    again AS (
        SELECT f.seq, l.name, l.window_end
        FROM place l
        CROSS JOIN LATERAL ((SELECT e.seq, e.xid FROM @schema@.event e
                             WHERE e.xid >= pg_snapshot_xmax(l.shown::pg_snapshot)
                             ORDER BY e.xid, e.seq LIMIT 1)
                            UNION ALL
                            (SELECT e.seq, e.xid FROM @schema@.event e
                             WHERE e.seq <= l.reached AND e.seq > l.reached - 100
                             ORDER BY e.seq DESC LIMIT 1)) f
        WHERE l.reads AND f.seq <= l.reached
          AND f.xid >= pg_snapshot_xmax(l.shown::pg_snapshot)
        LIMIT 1),
    -- An event that looks as if it had been seen, though it is past all that was given there?
    strange AS (
        SELECT f.seq, l.name
        FROM place l
        CROSS JOIN LATERAL (SELECT e.seq, e.xid FROM @schema@.event e
                            WHERE e.seq > l.window_end ORDER BY e.seq LIMIT 1000) f
        WHERE l.reads AND pg_visible_in_snapshot(f.xid, l.shown::pg_snapshot)
        LIMIT 1)
    SELECT knows.name, knows.seq,
           -- A home is cluster/sequence/file. Where the cluster is not known, now or when the lane
           -- was written, the sequence has to tell.
           EXISTS (SELECT 1 FROM place l
                   WHERE l.home IS NOT NULL
                     AND CASE WHEN cluster IS NULL OR l.home LIKE '?/%'
                              THEN split_part(l.home, '/', 2) <> split_part(here, '/', 2)
                              ELSE split_part(l.home, '/', 1) <> cluster END) AS from_elsewhere,
           EXISTS (SELECT 1 FROM place l
                   WHERE pg_snapshot_xmax(l.seen::pg_snapshot)
                         > pg_snapshot_xmax(pg_current_snapshot())) AS not_begun,
           (SELECT format('event %s is new, but consumer "%s" was past %s already',
                          x.seq, x.name, x.window_end) FROM again x) AS again,
           (SELECT format('event %s was brought here from elsewhere: it is past what consumer "%s" '
                          'was given, and looks as if it had been seen',
                          x.seq, x.name) FROM strange x) AS strange
    INTO k
    FROM (SELECT 1) AS one LEFT JOIN knows ON true;
    SELECT max(e.seq) INTO top FROM @schema@.event e;
    SELECT q.seqcache AS cache, q.seqincrement AS step, q.seqcycle AS cycle, q.seqmax AS most INTO s
    FROM pg_catalog.pg_sequence q WHERE q.seqrelid = '@schema@.event_seq_seq'::regclass;
    head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);

    -- Was it moved?
    IF k.from_elsewhere
       OR EXISTS (SELECT 1 FROM @schema@.meta m
                  WHERE m.name = 'system_identifier' AND m.value NOT IN ('unknown', cluster)) THEN
        moved := 'it was brought here from another cluster';
    ELSIF k.not_begun THEN
        moved := 'its consumers have seen transactions that this cluster has not begun yet';
    ELSIF (SELECT e.xid FROM @schema@.event e
           WHERE e.xid >= pg_snapshot_xmax(pg_current_snapshot()) AND e.xid IS DISTINCT FROM own
           ORDER BY e.xid LIMIT 1) IS NOT NULL THEN -- ordered, so that it is a probe of the index
        moved := 'it has events of transactions that this cluster has not begun yet';
    END IF;

    -- Did numbers begin again, or was an event brought in?
    IF k.seq > head THEN
        numbers := format('the last event number given out is %s, but consumer "%s" knows %s',
                          head, k.name, k.seq);
    ELSIF top > head THEN
        numbers := format('the last event number given out is %s, but there is an event %s',
                          head, top);
    ELSIF s.step < 1 THEN
        numbers := format('event numbers go backwards (INCREMENT %s)', s.step);
    ELSIF moved IS NULL THEN
        numbers := coalesce(k.again, k.strange);
    END IF;

    -- Do both sequences grow, without end? A cache is harmless to epochs: _refence sees to that.
    SELECT format('epochs come from a sequence with INCREMENT %s MAXVALUE %s%s',
                  q.seqincrement, q.seqmax, CASE WHEN q.seqcycle THEN ' CYCLE' ELSE '' END)
    INTO sequence
    FROM pg_catalog.pg_sequence q
    WHERE q.seqrelid = '@schema@.epoch'::regclass
      AND (q.seqincrement <> 1 OR q.seqcycle OR q.seqmax < 8796093022207);
    IF s.cache <> 1 OR s.step <> 1 OR s.cycle OR s.most <> 9223372036854775807 THEN
        sequence := format('event numbers come from a sequence with '
                           'CACHE %s INCREMENT %s MAXVALUE %s%s',
                           s.cache, s.step, s.most, CASE WHEN s.cycle THEN ' CYCLE' ELSE '' END);
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._trouble() IS
    'whether this is still the outbox that its consumers know';
