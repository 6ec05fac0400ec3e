-- _needed says whether anybody may still need an event: a lane that has not handed it out, a claim
-- that may be handed out again, or a consumer that has the event parked. A dead letter holds a copy
-- of its event, so a letter that was sent back does not need the event itself.
CREATE OR REPLACE FUNCTION @schema@._needed(xid xid8, seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT EXISTS (SELECT 1
                   FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0
                     AND _needed.seq > @schema@._starts_after(c.start_seen, c.start_floor)
                     AND NOT @schema@._handed_out(l.seen, l.floor, l.target, l.pos,
                                                  _needed.xid, _needed.seq))
        OR EXISTS (SELECT 1 FROM @schema@.claim k
                   WHERE k.lane >= 0 AND _needed.seq > k.from_seq AND _needed.seq <= k.to_seq
                     AND NOT pg_visible_in_snapshot(_needed.xid, k.seen)
                     AND pg_visible_in_snapshot(_needed.xid, k.target))
        OR EXISTS (SELECT 1
                   FROM @schema@.parked p JOIN @schema@.consumer c ON c.name = p.consumer
                   WHERE p.seq = _needed.seq
                     AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                                     WHERE d.consumer = p.consumer AND d.seq = p.seq))
$outbox$;
COMMENT ON FUNCTION @schema@._needed(xid8, bigint) IS 'whether anybody still needs an event';
