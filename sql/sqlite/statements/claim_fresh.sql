-- claim_fresh.sql: handing out the events after a lane's position. PostgreSQL: claim_fresh.sql.

-- lane_found (consumer text, lane int): events up to here have been handed out; and whether
-- anything is parked. Where nothing is, a turn asks no further.
SELECT position, EXISTS (SELECT 1 FROM outbox_parked WHERE consumer = :consumer)
  FROM outbox_lane WHERE consumer = :consumer AND lane = :lane;

-- fresh_events (position int, max int): seq is commit order, so nothing can appear later before
-- what was read.
SELECT @event_columns@ FROM outbox_event WHERE seq > :position ORDER BY seq LIMIT :max;

-- payload_of (seq int): a payload that was left out.
SELECT payload FROM outbox_event WHERE seq = :seq;

-- event_id (seq int): whether a number is still that of the event that was read under it.
SELECT id FROM outbox_event WHERE seq = :seq;

-- lanes_together (consumer text, lanes int): where all lanes stand, if that is one place.
SELECT min(position) FROM outbox_lane WHERE consumer = :consumer
HAVING min(position) = max(position) AND count(*) = :lanes;

-- set_aside (consumer text, epoch int, owner text, now int, lease int, boot int, ahead int): a
-- claim without events keeps a lane for its owner, if another worker has claimed from all lanes at
-- once, and there is more to claim.
INSERT INTO outbox_claim (consumer, epoch, lane, parked, from_seq, to_seq, owner, locked_until,
                          lease, boot, ahead)
SELECT consumer, :epoch, lane, 0, position, position, :owner, :now + :lease, :lease,
       nullif(:boot, 0), :ahead
  FROM outbox_lane l
 WHERE consumer = :consumer AND position < (SELECT max(seq) FROM outbox_event)
   AND EXISTS (SELECT 1 FROM outbox_claim
                WHERE consumer = :consumer AND parked = 0 AND lane < 0 AND owner <> :owner)
   AND NOT EXISTS (SELECT 1 FROM outbox_claim k
                    WHERE k.consumer = :consumer AND k.parked = 0
                      AND (k.owner = :owner OR k.lane = l.lane))
 ORDER BY lane LIMIT 1;

-- drop_aside (consumer text, owner text): the owner has found something else, or nobody is in its
-- way.
DELETE FROM outbox_claim
 WHERE consumer = :consumer AND owner = :owner AND parked = 0 AND from_seq = to_seq;

-- key_parked (consumer text, key int): a fresh event waits for the parked events of its key.
SELECT 1 FROM outbox_parked WHERE consumer = :consumer AND key = :key LIMIT 1;

-- parked_keys (consumer text, max int): the same for many events at once.
SELECT key FROM outbox_parked INDEXED BY outbox_parked_key
 WHERE consumer = :consumer AND key <> 0 LIMIT :max;

-- move_position (consumer text, lane int, position int): records how far events are handed out. The
-- highest position ever is kept together with the id of its event: they reveal a file whose numbers
-- began again.
UPDATE outbox_lane
   SET position = :position,
       high = max(high, :position),
       high_id = CASE WHEN :position > high THEN (SELECT id FROM outbox_event WHERE seq = :position)
                      ELSE high_id END
 WHERE consumer = :consumer AND lane = :lane;

-- move_others (consumer text, position int): the lanes after the first follow it. The highest
-- position is known by the first.
UPDATE outbox_lane SET position = :position WHERE consumer = :consumer AND lane > 0;
