-- take_over.sql: what becomes of claims whose lease has run out. PostgreSQL: take_over.sql.

-- shorten_leases (consumer text, now int): a clock that was ahead when a lease was taken must not make it last for ever.
UPDATE outbox_claim SET locked_until = :now + lease
 WHERE consumer = :consumer AND locked_until > :now + lease;

-- expired_claim (consumer text, now int, unordered int, known text): the first claim that has run out and may be taken over. Where
-- there is an order to keep, the earlier claims of its lane must be over, too. known has the epochs, as JSON, that the caller
-- itself has in hand: those it may still settle, however late.
SELECT epoch, lane, parked, from_seq, to_seq
  FROM outbox_claim c
 WHERE consumer = :consumer AND locked_until <= :now
   AND epoch NOT IN (SELECT value FROM json_each(:known))
   AND (parked OR :unordered
        OR NOT EXISTS (SELECT 1 FROM outbox_claim e
                        WHERE e.consumer = :consumer AND e.lane = c.lane AND NOT e.parked AND e.epoch < c.epoch
                          AND (e.locked_until > :now OR e.epoch IN (SELECT value FROM json_each(:known)))))
 ORDER BY epoch LIMIT 1;

-- range_events (from_seq int, to_seq int): the events of a fresh claim, and those between them of other lanes.
SELECT @event_columns@ FROM outbox_event WHERE seq > :from_seq AND seq <= :to_seq ORDER BY seq;

-- poison_of (consumer text, epoch int, max_attempts int): a careful event whose last attempt ended in a crash. A careful event is
-- always alone in its claim.
SELECT seq, attempts, key FROM outbox_parked
 WHERE consumer = :consumer AND claim = :epoch AND careful = 1 AND attempts >= :max_attempts LIMIT 1;

-- unpark_claim (consumer text, epoch int): the events of a parked claim wait again, as careful ones.
UPDATE outbox_parked SET claim = NULL, careful = 1 WHERE consumer = :consumer AND claim = :epoch;
