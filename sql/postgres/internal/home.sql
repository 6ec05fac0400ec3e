-- Checks whether this is still the outbox that a consumer knows.

-- The system identifier of this cluster; NULL if the role may not read it. A session stays in its
-- cluster, so the setting outbox.cluster caches it.
CREATE OR REPLACE FUNCTION @schema@._home() RETURNS text LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    known text := nullif(current_setting('outbox.cluster', true), '');
BEGIN
    IF known IS NULL THEN
        BEGIN
            SELECT s.system_identifier::text INTO known FROM pg_catalog.pg_control_system() s;
        EXCEPTION WHEN insufficient_privilege THEN -- cached, too
            known := '?';
        END;
        PERFORM set_config('outbox.cluster', known, false);
    END IF;
    RETURN nullif(known, '?');
END $outbox$;

-- The place of the outbox, which lanes record (lane.home): cluster/sequence/file, for the sequence
-- of event numbers. If it differs, the outbox was moved, or the sequence was changed: ALTER
-- SEQUENCE and TRUNCATE ... RESTART IDENTITY assign it a new file, and make sessions drop cached
-- numbers.
CREATE OR REPLACE FUNCTION @schema@._here() RETURNS text LANGUAGE sql VOLATILE
RETURN @include place_in(coalesce(@schema@._home(), '?'))@;

-- Whether `home`, which a lane has recorded, is the place `here` (see _here). For a role that may
-- not read the cluster's identity, the sequence and its file decide.
CREATE OR REPLACE FUNCTION @schema@._at_home(home text, here text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(home = here
                OR (here LIKE '?/%' AND substr(home, strpos(home, '/')) = substr(here, 2)), false);

-- Checks whether this is still the outbox that its lanes know. Each result is NULL or a problem.
--
-- moved: it came from another cluster, so its transaction numbers mean nothing here.
--
-- numbers: they restarted below one that a consumer knows (TRUNCATE ... RESTART IDENTITY,
-- setval, logical replication, which copies no sequences), so that new events would be skipped; or
-- events were brought in with transaction numbers that count as seen.
--
-- sequence: event numbers may not grow in the order they are taken (CACHE), or may end.
--
-- It probes indexes and checks samples, once for each position, because a relay with a thousand
-- consumers calls this for each; rebaseline, which repairs this, reads all events.
CREATE OR REPLACE FUNCTION @schema@._trouble(OUT moved text, OUT numbers text, OUT sequence text)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $outbox$
DECLARE
    cluster text := @schema@._home();
    own xid8 := pg_current_xact_id_if_assigned();
    s record;   -- how the sequence of event numbers is defined
    k record;   -- what consumers know
    top bigint;
    head bigint;
BEGIN
    -- Read before the last number assigned, which only grows.
    k := @schema@._known(cluster);
    SELECT max(e.seq) INTO top FROM @schema@.event e;
    SELECT q.seqcache AS cache, q.seqincrement AS step, q.seqcycle AS cycle, q.seqmax AS most INTO s
    FROM pg_catalog.pg_sequence q WHERE q.seqrelid = '@schema@.event_seq_seq'::regclass;
    head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);

    IF k.from_elsewhere
       OR EXISTS (SELECT 1 FROM @schema@.meta m
                  WHERE m.name = 'system_identifier' AND m.value NOT IN ('unknown', cluster)) THEN
        moved := 'it was brought here from another cluster';
    ELSIF k.not_begun THEN
        moved := 'its consumers have seen transactions that this cluster has not begun yet';
    ELSIF (SELECT e.xid FROM @schema@.event e
           WHERE e.xid >= pg_snapshot_xmax(pg_current_snapshot()) AND e.xid IS DISTINCT FROM own
           ORDER BY e.xid LIMIT 1) IS NOT NULL THEN -- ORDER BY makes it an index probe
        moved := 'it has events of transactions that this cluster has not begun yet';
    END IF;

    -- Did numbers restart, or was an event brought in?
    IF k.seq > head THEN
        numbers := format('the last event number given out is %s, but consumer "%s" knows %s',
                          head, k.name, k.seq);
    ELSIF top > head THEN
        numbers := format('the last event number given out is %s, but there is an event %s', head,
                          top);
    ELSIF s.step < 1 THEN
        numbers := format('event numbers go backwards (INCREMENT %s)', s.step);
    ELSIF moved IS NULL THEN
        numbers := coalesce(k.again, k.strange);
    END IF;

    -- Do both sequences grow without end? Epochs may be cached: _refence handles that.
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
END $outbox$;

-- What the consumers know of this outbox: the highest event number (seq), with the name of one that
-- knows it; whether they come from elsewhere, or have seen transactions that have not begun here;
-- and an event whose number and transaction contradict each other (NULL: none).
CREATE OR REPLACE FUNCTION @schema@._known(
    cluster text, OUT name text, OUT seq bigint, OUT from_elsewhere boolean, OUT not_begun boolean,
    OUT again text, OUT strange text) LANGUAGE plpgsql VOLATILE AS $outbox$
#variable_conflict use_column
DECLARE
    here text := @schema@._here();
BEGIN
    WITH place AS MATERIALIZED (
        SELECT min(c.name) AS name, l.lane >= 0 AS reads, l.home, l.window_end, o.seq AS reached,
               l.seen::text AS seen, coalesce(l.target, l.seen)::text AS shown
        FROM @schema@.consumer c
        CROSS JOIN LATERAL @schema@._places(c.name, c.lanes) l
        CROSS JOIN LATERAL @schema@._reached(c, l) AS o (seq)
        WHERE l.leader IS NULL -- other lanes share their leader's place
        GROUP BY 2, 3, 4, 5, 6, 7),
    knows AS (
        SELECT x.name, x.seq
        FROM (SELECT l.name, l.window_end AS seq FROM place l
              UNION ALL
              SELECT c.name, greatest(
                         (SELECT max(x.seq) FROM @schema@.parked x WHERE x.consumer = c.name),
                         (SELECT max(x.seq) FROM @schema@.dead x WHERE x.consumer = c.name),
                         (SELECT max(x.seq) FROM @schema@.receipt x WHERE x.consumer = c.name))
              FROM @schema@.consumer c) x
        ORDER BY x.seq DESC NULLS LAST LIMIT 1),
    -- Two events are checked for each position: the first that is new by its transaction, and the
    -- last up to the number reached. Neither may be both new and reached.
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
    -- An event that appears to have been seen, though it is past every number known there.
    strange AS (
        SELECT f.seq, l.name
        FROM place l
        CROSS JOIN LATERAL (SELECT e.seq, e.xid FROM @schema@.event e
                            WHERE e.seq > l.window_end ORDER BY e.seq LIMIT 1000) f
        WHERE l.reads AND pg_visible_in_snapshot(f.xid, l.shown::pg_snapshot)
        LIMIT 1)
    SELECT knows.name, knows.seq,
           -- If the cluster is unknown, now or when the lane was written, the sequence decides.
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
    INTO name, seq, from_elsewhere, not_begun, again, strange
    FROM (SELECT 1) AS one LEFT JOIN knows ON true;
END $outbox$;

-- Runs rebaseline for a caller that holds the lock of a consumer. why describes the problem, for
-- the error message if it cannot be repaired now.
CREATE OR REPLACE FUNCTION @schema@._repair_outbox(why text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- rebaseline takes this lock first, and then those of all consumers. Waiting for it here could
    -- cause a deadlock: its holder may wait for the consumer that the caller has locked.
    BEGIN
        LOCK TABLE @schema@.setting IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'the outbox in schema % is being repaired: %', '@schema@', why
            USING ERRCODE = 'lock_not_available', HINT = 'try again in a moment';
    END;

    IF NOT @schema@.rebaseline() THEN
        RAISE EXCEPTION 'the outbox in schema % has to be repaired (%), but rebaseline finds '
            'nothing to do', '@schema@', why
            USING ERRCODE = 'OB006', HINT = 'please report this, with the rows of table lane';
    END IF;
END $outbox$;

-- Checks whether this is still the outbox that the lanes of a consumer know. wrong: it has to be
-- repaired first. repaired: it was, and the turn has to start over. here: the place to record.
-- moved: another place was recorded, so the head read before the lock means nothing. Under
-- _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._turn_home(
    ls @schema@.lane[], OUT wrong text, OUT repaired boolean, OUT here text, OUT moved boolean)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    place text;
    trouble record;
BEGIN
    repaired := false;
    moved := false;
    IF current_user <> @schema@._caller() THEN
        -- The session may have set this to any value: _home must read it again.
        PERFORM set_config('outbox.cluster', '', true);
    END IF;
    place := @schema@._here();
    PERFORM 1 FROM unnest(ls) x WHERE NOT @schema@._at_home(x.home, place);
    IF NOT FOUND THEN RETURN; END IF;

    PERFORM @schema@._check_whole();
    trouble := @schema@._trouble();
    moved := true;
    wrong := coalesce(trouble.moved, trouble.numbers);
    IF wrong IS NOT NULL THEN
        RETURN;
    ELSIF trouble.sequence IS NULL THEN
        here := place;
    ELSIF random() < 0.02 THEN
        -- The floor does not move then, which is slower but equally correct. A repair blocks
        -- emits, so only some turns try it.
        BEGIN
            PERFORM @schema@._repair_outbox(trouble.sequence);
            repaired := true;
        EXCEPTION WHEN lock_not_available OR sqlstate 'OB006' THEN
            NULL;
        END;
    END IF;
END $outbox$;

-- Raises an error while an enabled subscription writes to table event. Its events have transaction
-- numbers of another cluster, and the lanes here would consider them seen.
CREATE OR REPLACE FUNCTION @schema@._check_fed() RETURNS void LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    name text := (SELECT min(s.subname)
                  FROM pg_catalog.pg_subscription_rel r
                  JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
                  WHERE r.srrelid = '@schema@.event'::regclass AND s.subenabled);
BEGIN
    IF name IS NOT NULL THEN
        RAISE EXCEPTION 'the outbox in schema % is a copy that subscription "%" still writes to',
            '@schema@', name
            USING ERRCODE = 'OB006',
                  HINT = format('run workers on the publisher; at the cut-over stop them, '
                                'then run ALTER SUBSCRIPTION %I DISABLE here', name);
    END IF;
END $outbox$;
