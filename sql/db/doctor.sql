-- doctor.sql: checks for problems of an outbox.

-- lost_places (): consumers that have lost the row of a lane, and with it their position.
SELECT name FROM outbox_consumer c
 WHERE lanes > (SELECT count(*) FROM outbox_lane l
                 WHERE l.consumer = c.name AND l.lane < c.lanes)
 ORDER BY name;

-- lost_parked (max int): parked rows whose event was deleted: trim never deletes such events, and a
-- dead letter that was sent back has its own copy.
SELECT p.consumer, count(*), min(p.seq)
  FROM (SELECT consumer, seq FROM outbox_parked LIMIT :max) p
  LEFT JOIN @event_of_p@
 WHERE e.id IS NULL
   AND NOT EXISTS (SELECT 1 FROM outbox_dead d WHERE d.consumer = p.consumer AND d.seq = p.seq)
 GROUP BY p.consumer ORDER BY p.consumer;

-- vanished_claims (before int): claims that expired long ago, and that no relay has taken over.
SELECT consumer, count(*), min(locked_until), min(owner) FROM outbox_claim
 WHERE locked_until <= :before GROUP BY consumer ORDER BY consumer;
