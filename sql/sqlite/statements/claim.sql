-- claim.sql: claims as such. A claim is a row with the lease and the epoch, which is the fence: whoever comes with another epoch
-- changes nothing.

-- set_epoch (consumer text, epoch int): the epoch of the claim that is being made; it grows with each.
UPDATE outbox_consumer SET epoch = :epoch WHERE name = :consumer;

-- put_claim (consumer text, epoch int, lane int, parked int, from_seq int, to_seq int, owner text, now int, lease int,
-- knows int): the lease. A fresh claim has the events of its lane behind from_seq, up to and with to_seq; a parked one those
-- parked rows that name it. knows is the version of the schema that its owner was made for.
INSERT INTO outbox_claim (consumer, epoch, lane, parked, from_seq, to_seq, owner, locked_until, lease, knows)
VALUES (:consumer, :epoch, :lane, :parked, :from_seq, :to_seq, :owner, :now + :lease, :lease, :knows);

-- is_claimed (consumer text, epoch int, owner text): whether the claim is still its owner's, however late.
SELECT 1 FROM outbox_claim WHERE consumer = :consumer AND epoch = :epoch AND owner = :owner;

-- extend_claim (consumer text, epoch int, owner text, now int, lease int): the owner keeps it for another lease, unless it
-- was taken over.
UPDATE outbox_claim SET locked_until = :now + :lease, lease = :lease
 WHERE consumer = :consumer AND epoch = :epoch AND owner = :owner;

-- drop_claim (consumer text, epoch int): it is settled, or was taken over.
DELETE FROM outbox_claim WHERE consumer = :consumer AND epoch = :epoch;

-- list_claims (consumer text, owner text): all claims of a consumer, and whether they are somebody else's.
SELECT epoch, locked_until, owner <> :owner FROM outbox_claim WHERE consumer = :consumer;
