-- claim_fresh.sql: handing out the events after a lane's position. PostgreSQL: claim_fresh.sql.

-- lane_position (consumer text, lane int): events up to here have been handed out.
SELECT position FROM outbox_lane WHERE consumer = :consumer AND lane = :lane;

-- fresh_events (position int, max int): seq is commit order, so nothing can appear later before
-- what was read.
SELECT @event_columns@ FROM outbox_event WHERE seq > :position ORDER BY seq LIMIT :max;

-- event_id (seq int): whether a number is still that of the event that was read under it.
SELECT id FROM outbox_event WHERE seq = :seq;

-- lane_claims (consumer text, lane int): the fresh claims of a lane, whoever owns them.
SELECT epoch, locked_until FROM outbox_claim
 WHERE consumer = :consumer AND lane = :lane AND parked = 0;

-- any_parked (consumer text): spares the question per key where nothing is parked at all.
SELECT 1 FROM outbox_parked WHERE consumer = :consumer LIMIT 1;

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
