-- surely_done: events of transactions before this one are known to all lanes of all consumers: below the floor nobody needs them.
-- It saves asking for each one.
CREATE OR REPLACE FUNCTION @schema@.surely_done() RETURNS xid8
LANGUAGE sql STABLE AS $outbox$
    SELECT coalesce(min(pg_snapshot_xmin(l.seen)::text::bigint), 0)::text::xid8
    FROM @schema@.consumer c, LATERAL @schema@.lanes(c.name, c.lanes) l WHERE l.lane >= 0
$outbox$;
COMMENT ON FUNCTION @schema@.surely_done() IS 'up to which transaction every consumer has got';
