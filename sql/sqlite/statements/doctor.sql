-- doctor.sql: what can be wrong with an outbox.

-- lost_places (): a consumer without the row of a lane does not know where it is.
SELECT name FROM outbox_consumer c
 WHERE lanes > (SELECT count(*) FROM outbox_lane l
                 WHERE l.consumer = c.name AND l.lane < c.lanes)
 ORDER BY name;

-- vanished_claims (before int): claims that ran out long ago, and that no relay has taken over.
SELECT consumer, count(*), min(locked_until), owner FROM outbox_claim
 WHERE locked_until <= :before GROUP BY consumer ORDER BY consumer;
