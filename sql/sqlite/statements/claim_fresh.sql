-- claim_fresh.sql: handing out the events behind the position of a lane. PostgreSQL: claim_fresh.sql.

-- lane_position (consumer text, lane int): up to where events were handed out.
SELECT position FROM outbox_lane WHERE consumer = :consumer AND lane = :lane;

-- fresh_events (position int, max int): seq is commit order, so nothing can appear behind what was read.
SELECT @event_columns@ FROM outbox_event WHERE seq > :position ORDER BY seq LIMIT :max;

-- lane_claims (consumer text, lane int): the fresh claims of a lane, whoever has them.
SELECT epoch, locked_until FROM outbox_claim WHERE consumer = :consumer AND lane = :lane AND parked = 0;

-- any_parked (consumer text): whether there is anything that fresh events may have to wait for.
SELECT 1 FROM outbox_parked WHERE consumer = :consumer LIMIT 1;

-- key_parked (consumer text, key int): whether a fresh event of this key has to wait.
SELECT 1 FROM outbox_parked WHERE consumer = :consumer AND key = :key LIMIT 1;

-- move_position (consumer text, lane int, position int): up to there events are handed out now. The highest it ever was is kept with
-- the id of its event: by that a file is known whose numbers began again.
UPDATE outbox_lane
   SET position = :position,
       high = max(high, :position),
       high_id = CASE WHEN :position > high THEN (SELECT id FROM outbox_event WHERE seq = :position) ELSE high_id END
 WHERE consumer = :consumer AND lane = :lane;
