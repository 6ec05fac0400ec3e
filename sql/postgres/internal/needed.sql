-- _needed: whether a lane or a claim of anybody still has to hand out, or may have to hand out again, this event.
CREATE OR REPLACE FUNCTION @schema@._needed(xid xid8, seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT EXISTS (SELECT 1 FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0 AND NOT @schema@._handed_out(l.seen, l.floor, l.target, l.pos, $1, $2))
        OR EXISTS (SELECT 1 FROM @schema@.claim k WHERE k.lane >= 0 AND $2 > k.from_seq AND $2 <= k.to_seq
                   AND NOT pg_visible_in_snapshot($1, k.seen) AND pg_visible_in_snapshot($1, k.target))
        OR EXISTS (SELECT 1 FROM @schema@.parked p JOIN @schema@.consumer c ON c.name = p.consumer WHERE p.seq = $2
                   AND NOT EXISTS (SELECT 1 FROM @schema@.dead d WHERE d.consumer = p.consumer AND d.seq = p.seq))
$outbox$;
COMMENT ON FUNCTION @schema@._needed(xid8, bigint) IS 'whether anybody still needs an event';
