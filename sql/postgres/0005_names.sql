-- The outbox in a PostgreSQL database, version 5: names, and types for what a turn takes and gives.
--
-- ---- names ----
--
-- The functions that are ours alone begin with an underscore now; those that users call do not.
-- `\df outbox.[a-z]*` lists the public ones. Functions are installed anew by every init, and those
-- of former names are dropped then. Here are the ones that must keep their identity, because
-- something is bound to them: a default, a constraint, a policy, a trigger, a right that tells
-- which part a role has.

DO $outbox$
DECLARE
    f record;
BEGIN
    FOR f IN SELECT p.oid::regprocedure AS which, p.proname AS name
             FROM pg_catalog.pg_proc p
             WHERE p.pronamespace = '@schema@'::regnamespace
               AND p.proname IN ('clock', 'tenant_fits', 'headers_fit', 'payload_fits',
                                 'not_before_fits', 'inherits', 'acting_for', 'sees', 'note_drop',
                                 'operator_pause', 'worker_report') LOOP
        EXECUTE format('ALTER ROUTINE %s RENAME TO %I', f.which, '_' || f.name);
    END LOOP;
END
$outbox$;

-- ---- what a turn takes and gives, see internal/turn.sql ----

-- How a claim ended. epoch 0: there is nothing to settle. tried is the number of its events that
-- were not given back. For outcomes and release_from see settle, for marks internal/put_marks.sql.
CREATE TYPE @schema@._settlement AS (
    epoch        bigint,
    tried        bigint,
    outcomes     jsonb,
    release_from bigint,
    marks        jsonb
);

-- What a worker asks for.
CREATE TYPE @schema@._request AS (
    max_events   int,      -- 0: claim nothing
    lease_ms     bigint,
    max_attempts int,      -- an event that was in flight this often when its worker vanished is buried;
                           -- 0: take over nothing
    careful_mode int,      -- see internal/claim_parked.sql
    parked_first boolean,  -- try parked events before new ones
    pull_in      boolean,  -- see internal/claim_parked.sql
    lane_hint    int,      -- the lane to try first
    known        bigint[], -- epochs of the claims that the worker has in hand
    ordering     text,     -- the settings it works with; NULL: it does not say
    lanes        int,
    events       text,
    predicate    text
);

-- Events that the worker has read already, and would like to claim. to_seq 0: none.
CREATE TYPE @schema@._ahead AS (
    lane     int,
    target   text,         -- the window they were read in
    from_seq bigint,       -- they are in (from_seq, to_seq]
    to_seq   bigint,
    n        int,
    members  bigint,       -- the lanes whose events they are, see lane.members
    sample   bigint        -- what the worker makes of a key, see _knows_keys; NULL: nothing
);

CREATE TYPE @schema@._answer AS (
    lost        boolean,   -- the claim to be settled is no longer the worker's
    paused      boolean,
    changed     boolean,   -- the consumer has other settings now: nothing was claimed
    busy        boolean,   -- another worker has a lane
    through     boolean,   -- there is nothing left to do
    skipped     boolean,   -- it got further without finding anything: ask again at once
    careful_due boolean,   -- a careful event is due that careful_mode left alone
    crashed     bigint,    -- events taken over from workers that vanished
    buried      bigint,    -- those of them that became dead letters
    wait_ms     bigint,    -- ask again after this time at the latest; -1: nothing is due
    now_ms      bigint,    -- the database's clock
    epoch       bigint,    -- the claim, if n > 0:
    lane        int,       -- -1: parked events
    n           int,
    careful     boolean,
    held        bigint[],  -- events of it that have to wait behind others of their key
    seen        text,      -- its window
    floor       bigint,
    target      text,
    from_seq    bigint,
    to_seq      bigint,
    window_end  bigint,
    quiet       boolean,   -- the claim took all there was, and nothing is parked
    members     bigint,    -- the lanes that it covers
    keys        bigint[]   -- in place of held: every event of these keys has to wait
);

-- ---- parked events are found past the dead rows ----

-- Of the parked events of a key, the first has a time (due_at), whether it is in a claim or not; those
-- behind it have none. So this index leads to all that are due, and to every key that is held up.
DROP INDEX @schema@.parked_due;
CREATE INDEX parked_due ON @schema@.parked (consumer, due_at, seq) WHERE due_at IS NOT NULL;

-- Times only grow, as epochs do: what was tried again and is gone lies before those that wait.
ALTER TABLE @schema@.lane ADD COLUMN due_from timestamptz;
COMMENT ON COLUMN @schema@.lane.due_from IS
    'of lane -1: no parked event of the consumer has an earlier due_at; NULL: nobody knows';

-- ---- what several turns take and give that are made together, see internal/turns.sql ----

-- A turn that settles a claim which was delivered whole, and asks for the next. place is its number
-- in the call. The rest is as in _settlement and _request.
CREATE TYPE @schema@._simple AS (
    place      int,
    consumer   text,
    owner      text,
    epoch      bigint,
    tried      bigint,
    marks      jsonb,
    max_events int,
    lease_ms   bigint,
    pull_in    boolean,
    known      bigint[],
    ordering   text,
    events     text,
    predicate  text
);

-- What became of it. The claim has the events of the window from seen to target, with a seq in
-- (from_seq, to_seq], that the consumer wants, all of them.
CREATE TYPE @schema@._simple_answer AS (
    place      int,
    epoch      bigint,  -- of the new claim
    n          int,     -- its events; 0: there is no claim
    more       boolean, -- the consumer has other claims
    seen       text,
    floor      bigint,
    target     text,
    from_seq   bigint,
    to_seq     bigint,
    quiet      boolean, -- nothing was new beyond them
    now_ms     bigint   -- the database's clock
);

-- ---- lanes that stand together, see internal/group.sql ----

ALTER TABLE @schema@.lane ADD COLUMN leader int, ADD COLUMN members bigint,
    ADD COLUMN kept_for text, ADD COLUMN kept_until timestamptz;
COMMENT ON COLUMN @schema@.lane.leader IS 'it stands where that lane stands; NULL: its own row says where';
COMMENT ON COLUMN @schema@.lane.members IS 'the lanes that stand here, bit n for lane n; NULL: only this one';
COMMENT ON COLUMN @schema@.lane.kept_for IS 'the worker that may claim them, until kept_until';
ALTER TABLE @schema@.claim ADD COLUMN members bigint;
COMMENT ON COLUMN @schema@.claim.members IS 'the lanes it covers, bit n for lane n; NULL: only its own';

-- ---- claims of parked events ----

-- A claim of parked events says which they are. They still carry its epoch, but no index has it: so
-- claiming them changes no index, as long as there is room for the new row beside the old one.
ALTER TABLE @schema@.claim ADD COLUMN seqs bigint[];
COMMENT ON COLUMN @schema@.claim.seqs IS
    'of lane -1: the parked events that were claimed; those that still carry its epoch are held';
UPDATE @schema@.claim k
SET seqs = ARRAY(SELECT p.seq FROM @schema@.parked p
                 WHERE p.consumer = k.consumer AND p.claim = k.epoch ORDER BY p.seq)
WHERE k.lane = -1;
DROP INDEX @schema@.parked_claim;
ALTER TABLE @schema@.parked SET (fillfactor = 45);

-- ---- how far all consumers have got, see internal/note_passed.sql ----

-- Such a sample is that of the consumer '', and concerns those who see all consumers.
ALTER POLICY tenant ON @schema@.passed USING (
    consumer IN (SELECT c.name FROM @schema@.consumer c)
    OR consumer = '' AND (SELECT @schema@._acting_for(current_user)) = '');

UPDATE @schema@.meta SET value = '5' WHERE name = 'schema_version';
