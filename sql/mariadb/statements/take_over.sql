-- take_over.sql: what becomes of a claim whose lease ran out.

-- shorten_lease (consumer text, epoch int, until int): when a lease ends by the clock of now.
UPDATE outbox_claim SET locked_until = :until WHERE consumer = :consumer AND epoch = :epoch;

-- poison_of (consumer text, epoch int, max_attempts int): the one event of a claim, if the attempt
-- that ended with its worker was the last one it had.
SELECT seq, attempts + 1, key_hash FROM outbox_parked
 WHERE consumer = :consumer AND claim = :epoch
   AND attempts + 1 >= :max_attempts
 LIMIT 1;

-- unpark_claim (consumer text, epoch int, blamed int, now int, salt int): the events of a parked
-- claim wait again, and have been through one more crash. If one is to blame, that was an attempt.
-- If nobody knows which is, then from the fourth crash on each comes again at a time of its own,
-- within 2 s at first and a minute in the end: sooner or later the one that kills is alone.
UPDATE outbox_parked
   SET due_at = IF(:blamed OR crashes < 3 OR due_at IS NULL, due_at,
                    :now + (seq % 1000003 * 7919 + :salt) % (1000 << least(crashes - 2, 6))),
       wait = IF(:blamed OR crashes < 3, wait,
                  (seq % 1000003 * 7919 + :salt) % (1000 << least(crashes - 2, 6))),
       attempts = attempts + :blamed, crashes = crashes + 1, claim = NULL
 WHERE consumer = :consumer AND claim = :epoch;
