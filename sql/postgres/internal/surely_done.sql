-- _surely_done returns a transaction number. Events of earlier transactions have been seen by every
-- lane of every consumer, and are in no claim. So nobody needs those below the floor, and _needed
-- does not have to be asked for each of them. Claims count because a claim of late events holds
-- some that are below its own floor.
CREATE OR REPLACE FUNCTION @schema@._surely_done() RETURNS xid8
LANGUAGE sql STABLE AS $outbox$
    SELECT coalesce(min(pg_snapshot_xmin(s.seen)::text::bigint), 0)::text::xid8
    FROM (SELECT l.seen
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
          WHERE l.lane >= 0
          UNION ALL
          SELECT k.seen FROM @schema@.claim k WHERE k.lane >= 0) s
$outbox$;
COMMENT ON FUNCTION @schema@._surely_done() IS 'up to which transaction every consumer has got';
