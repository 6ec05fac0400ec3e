-- take_over.sql: what becomes of a claim whose lease ran out.

-- shorten_lease (consumer text, epoch int, until int): if the clock was ahead when a lease was
-- granted, it still lasts no longer than one lease from now.
UPDATE outbox_claim SET locked_until = :until WHERE consumer = :consumer AND epoch = :epoch;

-- poison_of (consumer text, epoch int, max_attempts int): a careful event that crashed its last
-- attempt as well. A careful event is always alone in its claim.
SELECT seq, attempts, key_hash FROM outbox_parked
 WHERE consumer = :consumer AND claim = :epoch AND careful = 1 AND attempts >= :max_attempts
 LIMIT 1;

-- unpark_claim (consumer text, epoch int): the events of a parked claim wait again, as careful
-- ones: any of them may have killed the process.
UPDATE outbox_parked SET claim = NULL, careful = 1 WHERE consumer = :consumer AND claim = :epoch;
