-- Lanes at the same position that are worked on by the same worker form a group: one claim covers
-- them all, so that many lanes cost no more than one. One of them is the leader: its row holds the
-- position and the members of the group (lane.members). The rows of the others name the leader
-- (lane.leader); their positions have no meaning. A claim records which lanes it covers
-- (claim.members).
--
-- (1) Bit n is in the members of lane m exactly if m = n or lane n's leader is m. (2) A leader has
-- no leader. (3) Only _join_lanes and _split_lanes form and split groups; a function that stores a
-- row returned by _lanes makes that lane stand alone, and has to store all lanes of the consumer.

-- The lanes of a row of lane or claim.
CREATE OR REPLACE FUNCTION @schema@._members(members bigint, lane int) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(members, 1::bigint << lane);

-- Whether lane n is one of the lanes of such a row.
CREATE OR REPLACE FUNCTION @schema@._is_member(members bigint, lane int, n int) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (coalesce(members, 1::bigint << lane) >> n) & 1 = 1; -- each used once: can be inlined

-- The members of a group of all lanes.
CREATE OR REPLACE FUNCTION @schema@._all_lanes(lanes int) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN lanes >= 64 THEN -1 ELSE (1::bigint << lanes) - 1 END;

-- Whether two leaders stand at the same place.
CREATE OR REPLACE FUNCTION @schema@._same_place(l @schema@.lane, o @schema@.lane) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN (l).seen::text = (o).seen::text AND (l).floor = (o).floor AND (l).pos = (o).pos
       AND (l).target::text IS NOT DISTINCT FROM (o).target::text
       AND (l).next_floor IS NOT DISTINCT FROM (o).next_floor
       AND (l).window_end IS NOT DISTINCT FROM (o).window_end
       AND (l).home IS NOT DISTINCT FROM (o).home;

-- Whether a leader is kept for a worker other than `owner`. A wrong clock must not prolong that.
CREATE OR REPLACE FUNCTION @schema@._is_kept(l @schema@.lane, owner text, now timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN coalesce((l).kept_for <> owner AND (l).kept_until > now
                AND (l).kept_until <= now + interval '6 seconds', false);

-- Adds every leader at the position of lane `lead` to its group, except those with a lane in
-- `busy`, and those that are kept for another worker. ls and dirty are as in _turn_full.
CREATE OR REPLACE FUNCTION @schema@._join_lanes(
    lead int, busy bigint, owner text, now timestamptz,
    INOUT ls @schema@.lane[], INOUT dirty boolean[]) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    l @schema@.lane := ls[lead + 2];
    joined bigint;
BEGIN
    SELECT bit_or(@schema@._members(o.members, o.lane)) INTO joined
    FROM unnest(ls) o
    WHERE o.lane >= 0 AND o.lane <> lead AND o.leader IS NULL
      AND @schema@._members(o.members, o.lane) & busy = 0
      AND NOT @schema@._is_kept(o, owner, now) AND @schema@._same_place(l, o);
    IF joined IS NULL THEN RETURN; END IF;

    FOR i IN 2 .. array_length(ls, 1) LOOP
        CONTINUE WHEN (joined >> (i - 2)) & 1 = 0;
        ls[i].leader := lead;
        ls[i].members := NULL;
        ls[i].kept_for := NULL;
        ls[i].kept_until := NULL;
        dirty[i] := true;
    END LOOP;
    ls[lead + 2].members := @schema@._members(l.members, l.lane) | joined;
    dirty[lead + 2] := true;
END $outbox$;

-- Splits a group for a worker that finds nothing to do. Half of the largest group that still has
-- events to claim is kept for it, to claim there once the claims that cover these lanes are
-- settled; even of a group kept for another worker, so that several that start at once each get a
-- share. promised: lanes are kept for the worker, which should ask again soon.
CREATE OR REPLACE FUNCTION @schema@._split_lanes(
    c @schema@.consumer, busy bigint, owner text, now timestamptz,
    INOUT ls @schema@.lane[], INOUT dirty boolean[], OUT promised boolean)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    l @schema@.lane;
    o @schema@.lane;
    size int;
    largest int := 1;
    from_lane int;
    part bigint;           -- the lanes that are split off
    lead int;
BEGIN
    promised := false;
    FOR i IN 2 .. array_length(ls, 1) LOOP
        l := ls[i];
        CONTINUE WHEN l.leader IS NOT NULL;
        promised := promised OR coalesce(l.kept_for = owner AND l.kept_until > now, false);
        CONTINUE WHEN l.members IS NULL OR l.target IS NULL
                   OR (l.members & busy = 0 AND NOT @schema@._is_kept(l, owner, now));
        size := length(replace(l.members::bit(64)::text, '0', ''));
        IF size > largest
           AND (@schema@._window_step(l.seen, l.floor, l.target, l.pos, l.window_end, NULL,
                                      c.tenant)).next IS NOT NULL THEN
            largest := size;
            from_lane := l.lane;
        END IF;
    END LOOP;
    IF promised OR from_lane IS NULL THEN RETURN; END IF;

    -- Every second lane, except the leader.
    l := ls[from_lane + 2];
    SELECT bit_or(1::bigint << x.n), min(x.n) INTO part, lead
    FROM (SELECT n, row_number() OVER (ORDER BY n) AS nth
          FROM generate_series(0, c.lanes - 1) n
          WHERE n <> from_lane AND @schema@._is_member(l.members, l.lane, n)) x
    WHERE x.nth % 2 = 1;
    o := ls[lead + 2];
    o.members := part;
    o.seen := l.seen;
    o.floor := l.floor;
    o.target := l.target;
    o.next_floor := l.next_floor;
    o.window_end := l.window_end;
    o.pos := l.pos;
    o.home := l.home;
    o.kept_for := owner;
    o.kept_until := now + interval '5 seconds';
    ls[lead + 2] := o;
    FOR n IN 0 .. c.lanes - 1 LOOP
        CONTINUE WHEN (part >> n) & 1 = 0;
        ls[n + 2].leader := nullif(lead, n);
        dirty[n + 2] := true;
    END LOOP;
    ls[from_lane + 2].members := l.members & ~part;
    dirty[from_lane + 2] := true;
    promised := true;
END $outbox$;

-- The leaders among the lanes ls, those furthest behind first, so that groups at different
-- positions meet. Among leaders at the same position, `hint` is first.
CREATE OR REPLACE FUNCTION @schema@._behind_first(ls @schema@.lane[], hint int) RETURNS int[]
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT array_agg(x.lane ORDER BY pg_snapshot_xmax(x.seen), x.target IS NOT NULL, x.pos,
                     (x.lane - hint % (cardinality(ls) - 1) + cardinality(ls) - 1)
                     % (cardinality(ls) - 1))
    FROM unnest(ls) x WHERE x.lane >= 0 AND x.leader IS NULL
$outbox$;

-- Where lane `lead` may meet other groups: upto is the position of the next free group in its
-- window, and other is the group furthest ahead, in another window. See _claim_fresh.
CREATE OR REPLACE FUNCTION @schema@._meets(
    lead int, busy bigint, owner text, now timestamptz, ls @schema@.lane[],
    OUT upto bigint, OUT other @schema@.lane) LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    l @schema@.lane := ls[lead + 2];
BEGIN
    SELECT min(x.pos) INTO upto FROM unnest(ls) x
    WHERE x.lane >= 0 AND x.leader IS NULL AND x.lane <> lead AND x.pos > l.pos
      AND x.seen::text = l.seen::text AND x.target::text = l.target::text
      AND @schema@._members(x.members, x.lane) & busy = 0
      AND NOT @schema@._is_kept(x, owner, now);
    SELECT x.* INTO other FROM unnest(ls) x
    WHERE x.lane >= 0 AND x.leader IS NULL AND x.lane <> lead AND x.window_end IS NOT NULL
      AND pg_snapshot_xmax(coalesce(x.target, x.seen)) > pg_snapshot_xmax(l.seen)
    ORDER BY pg_snapshot_xmax(coalesce(x.target, x.seen)) DESC LIMIT 1;
END $outbox$;
