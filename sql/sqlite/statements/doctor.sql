-- doctor.sql: what can be wrong with an outbox.

-- lost_places (): a consumer without the row of a lane does not know where it is.
SELECT name FROM outbox_consumer c
 WHERE lanes > (SELECT count(*) FROM outbox_lane l
                 WHERE l.consumer = c.name AND l.lane < c.lanes)
 ORDER BY name;

-- lost_parked (max int): events that wait for a retry and are gone: trim never deletes those, and a
-- dead letter that was sent back has its own copy.
SELECT p.consumer, count(*), min(p.seq)
  FROM (SELECT consumer, seq FROM outbox_parked LIMIT :max) p
 WHERE NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.seq = p.seq)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead d WHERE d.consumer = p.consumer AND d.seq = p.seq)
 GROUP BY p.consumer ORDER BY p.consumer;

-- lost_keyed (max int): of the newest idempotency keys, those whose event is gone: trim deletes a
-- key before its event.
SELECT count(*) FROM (SELECT event_id FROM outbox_idempotency ORDER BY at DESC LIMIT :max) k
 WHERE NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.id = k.event_id);

-- count_guards (): the triggers that keep events as they were inserted.
SELECT count(*) FROM sqlite_master
 WHERE type = 'trigger' AND tbl_name = 'outbox_event'
   AND name IN ('outbox_event_inserted', 'outbox_event_updated', 'outbox_event_deleted');

-- changes_allowed (): somebody has left the permission behind.
SELECT count(*) FROM outbox_meta WHERE name = 'change_events';

-- vanished_claims (before int): claims that ran out long ago, and that no relay has taken over.
SELECT consumer, count(*), min(locked_until), owner FROM outbox_claim
 WHERE locked_until <= :before GROUP BY consumer ORDER BY consumer;
