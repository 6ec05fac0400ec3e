-- take_over.sql: what becomes of a claim whose lease ran out. PostgreSQL: take_over.sql.

-- correct_leases (consumer text, now int, boot int, ahead int): locked_until is a time of its
-- owner's wall clock. If the owner is a process of this machine, and that clock differs from ours
-- or was set since, the lease is made to end at the same moment by ours; less than 100 ms is the
-- work of NTP. Whatever the clocks say, no lease lasts longer than one from now.
UPDATE outbox_claim
   SET locked_until = min(:now + lease, locked_until + iif(boot = :boot, :ahead - ahead, 0)),
       ahead = iif(boot = :boot, :ahead, ahead)
 WHERE consumer = :consumer
   AND (locked_until > :now + lease
        OR (boot = :boot AND ahead NOT BETWEEN :ahead - 100 AND :ahead + 100));

-- expired_claim (consumer text, now int, unordered int, known text): the first claim that ran out
-- and may be taken over. Where order matters, the earlier claims of its lane must be over as well;
-- -1 stands for all lanes.
-- known lists, as JSON, the epochs the caller still has in hand: it may settle those, however late.
SELECT epoch, lane, parked, from_seq, to_seq, blamed
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

-- poison_of (consumer text, epoch int, max_attempts int): the one event of a claim, if the attempt
-- that ended with its worker was the last one it had.
SELECT seq, attempts + 1, key FROM outbox_parked
 WHERE consumer = :consumer AND claim = :epoch AND seq IN (@taken@)
   AND attempts + 1 >= :max_attempts
 LIMIT 1;

-- unpark_claim (consumer text, epoch int, blamed int, now int, salt int): the events of a parked
-- claim wait again, and have been through one more crash. If one is to blame, that was an attempt.
-- If nobody knows which is, then from the fourth crash on each comes again at a time of its own,
-- within 2 s at first and a minute in the end: sooner or later the one that kills is alone.
UPDATE outbox_parked
   SET due_at = iif(:blamed OR crashes < 3 OR due_at IS NULL, due_at,
                    :now + (seq % 1000003 * 7919 + :salt) % (1000 << min(crashes - 2, 6))),
       wait = iif(:blamed OR crashes < 3, wait,
                  (seq % 1000003 * 7919 + :salt) % (1000 << min(crashes - 2, 6))),
       attempts = attempts + :blamed, crashes = crashes + 1, claim = NULL
 WHERE consumer = :consumer AND claim = :epoch AND seq IN (@taken@);
