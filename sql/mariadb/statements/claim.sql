-- claim.sql: claims. A claim is a row with a lease and an epoch. The epoch is the fence: a worker
-- that comes with another one changes nothing.

-- put_progress (consumer text, epoch int, n int): remembers the newest epoch, so that the next one
-- is higher; 0: there is none. And counts deliveries, for operators: nothing depends on it.
UPDATE outbox_consumer SET epoch = greatest(epoch, :epoch), delivered = delivered + :n
 WHERE name = :consumer;

-- put_claim (consumer text, epoch int, lane int, parked int, from_seq int, to_seq int, owner text,
-- now int, lease int, blamed int): grants the lease. A fresh claim holds the events of its lane
-- after from_seq, up to and including to_seq; a parked claim holds the parked rows that name its
-- epoch.
INSERT INTO outbox_claim (consumer, epoch, lane, parked, from_seq, to_seq, owner, locked_until,
                          lease, blamed)
VALUES (:consumer, :epoch, :lane, :parked, :from_seq, :to_seq, :owner, :now + :lease, :lease,
        :blamed);

-- is_claimed (consumer text, epoch int, owner text): an owner may settle late, as long as nobody
-- has taken the claim over.
SELECT 1 FROM outbox_claim
 WHERE consumer = :consumer AND epoch = :epoch AND owner = :owner FOR UPDATE;

-- extend_claim (consumer text, epoch int, owner text, now int, lease int, absolve int): keeps the
-- claim for another lease, unless another worker has taken it over. absolve: its event is no longer
-- to blame if the worker vanishes.
UPDATE outbox_claim
   SET locked_until = :now + :lease, lease = :lease,
       blamed = IF(:absolve, 0, blamed)
 WHERE consumer = :consumer AND epoch = :epoch AND owner = :owner;

-- drop_claim (consumer text, epoch int): the claim was settled or taken over.
DELETE FROM outbox_claim WHERE consumer = :consumer AND epoch = :epoch;

-- all_claims (consumer text): the claims of a consumer, for all that a turn wants to know of them.
SELECT epoch, lane, parked, from_seq, to_seq, owner, locked_until, lease, blamed, 0, 0
  FROM outbox_claim WHERE consumer = :consumer ORDER BY epoch;

-- claim_owners (consumer text): who has each claim.
SELECT epoch, owner FROM outbox_claim WHERE consumer = :consumer ORDER BY epoch;
