-- _handed_out says whether a lane is past an event (xid, seq): it was delivered, or is in a claim,
-- parked or dead. seen, floor, target and pos are the lane's.
CREATE OR REPLACE FUNCTION @schema@._handed_out(
    seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, xid xid8, seq bigint)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_visible_in_snapshot(xid, seen)
       -- Of transactions that began after seen, a lane reads only what is past its floor.
       OR (xid >= pg_snapshot_xmax(seen) AND seq <= floor)
       -- In an open window everything up to pos is out.
       OR (target IS NOT NULL AND seq <= pos AND pg_visible_in_snapshot(xid, target));
COMMENT ON FUNCTION @schema@._handed_out(pg_snapshot, bigint, pg_snapshot, bigint, xid8, bigint) IS
    'whether a lane is past an event';
