-- _handed_out: whether a lane is past an event: it was delivered, or is in a claim, parked or dead.
CREATE OR REPLACE FUNCTION @schema@._handed_out(seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, xid xid8, seq bigint)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_visible_in_snapshot($5, $1)
        OR ($5 >= pg_snapshot_xmax($1) AND $6 <= $2) -- it began after that
        OR ($3 IS NOT NULL AND $6 <= $4 AND pg_visible_in_snapshot($5, $3));
COMMENT ON FUNCTION @schema@._handed_out(pg_snapshot, bigint, pg_snapshot, bigint, xid8, bigint) IS
    'whether a lane is past an event';
