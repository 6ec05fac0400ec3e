-- take_over.sql: what becomes of a claim whose lease ran out. PostgreSQL: take_over.sql.

-- shorten_leases (consumer text, now int): if the clock was ahead when a lease was granted, it
-- still lasts no longer than one lease from now.
UPDATE outbox_claim SET locked_until = :now + lease
 WHERE consumer = :consumer AND locked_until > :now + lease;

-- expired_claim (consumer text, now int, unordered int, known text): the first claim that ran out
-- and may be taken over. Where order matters, the earlier claims of its lane must be over as well;
-- -1 stands for all lanes.
-- known lists, as JSON, the epochs the caller still has in hand: it may settle those, however late.
SELECT epoch, lane, parked, from_seq, to_seq
  FROM outbox_claim c
 WHERE consumer = :consumer AND locked_until <= :now
   AND epoch NOT IN (SELECT value FROM json_each(:known))
   AND (parked OR :unordered
        OR NOT EXISTS (SELECT 1 FROM outbox_claim e
                        WHERE e.consumer = :consumer
                          AND (e.lane = c.lane OR e.lane < 0 OR c.lane < 0) AND NOT e.parked
                          AND e.epoch < c.epoch
                          AND (e.locked_until > :now
                               OR e.epoch IN (SELECT value FROM json_each(:known)))))
 ORDER BY epoch LIMIT 1;

-- range_events (from_seq int, to_seq int): the events of a fresh claim, among those of other lanes.
SELECT @event_columns@ FROM outbox_event WHERE seq > :from_seq AND seq <= :to_seq ORDER BY seq;

-- poison_of (consumer text, epoch int, max_attempts int): a careful event that crashed its last
-- attempt as well. A careful event is always alone in its claim.
SELECT seq, attempts, key FROM outbox_parked
 WHERE consumer = :consumer AND claim = :epoch AND seq IN (@taken@)
   AND careful = 1 AND attempts >= :max_attempts
 LIMIT 1;

-- unpark_claim (consumer text, epoch int): the events of a parked claim wait again, as careful
-- ones: any of them may have killed the process.
UPDATE outbox_parked SET claim = NULL, careful = 1
 WHERE consumer = :consumer AND claim = :epoch AND seq IN (@taken@);
