-- _before_start says whether an event (xid, seq) is from before the point where a consumer was told
-- to start, and so was never the consumer's. start_also lists such events that the snapshot can no
-- longer show (see _rebase_shown).
CREATE OR REPLACE FUNCTION @schema@._before_start(
    start_seen pg_snapshot, start_floor bigint, start_also bigint[], xid xid8, seq bigint)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(@schema@._handed_out(start_seen, start_floor, NULL, 0, xid, seq), false)
       OR coalesce(seq = ANY (start_also), false);
COMMENT ON FUNCTION @schema@._before_start(pg_snapshot, bigint, bigint[], xid8, bigint) IS
    'whether an event came before a consumer';

-- _starts_after returns the seq up to which no event is a consumer's, whenever it commits, because
-- the consumer was told to start past it. 0: it starts at the beginning, or where the events ended,
-- and then it gets what was still running, whatever its seq.
CREATE OR REPLACE FUNCTION @schema@._starts_after(start_seen pg_snapshot, start_floor bigint)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(@include start_of(_starts_after)@, 0);
COMMENT ON FUNCTION @schema@._starts_after(pg_snapshot, bigint) IS
    'up to which number no event is a consumer''s';
