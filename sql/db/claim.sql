-- claim.sql: the statements of a turn, which has locked its consumer's row, and those that read
-- events for claims. A claim is a row with a lease and an epoch. The epoch is the fence: a worker
-- with another epoch changes nothing.

-- @parked_columns@: the columns of a parked row that are read with its event; see read_parked.
failing_since, proven, attempts, `key`, seq, crashes > 0;

-- @apart@: a separate time for each event, see unpark_claim.
(seq % 1000003 * 7919 + :salt) % (1000 << least(crashes - 2, 6));

-- schema_version: a migration may have run since the relay started.
SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'schema_version';

-- consumer_state: what an operator or a restore may have changed since the last turn, including in
-- outbox_meta, and the server's clock. No other session changes the consumer's rows until the
-- commit.
SELECT paused, epoch, ordering, lanes, events, predicate,
       (SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'schema_version'),
       @marks@, parked_stamp, @server_clock@, @identity_value@
  FROM outbox_consumer
 WHERE name = :consumer FOR UPDATE;

-- lock_to_settle: the columns that a settlement outside of a turn needs.
SELECT @marks@, parked_stamp FROM outbox_consumer WHERE name = :consumer FOR UPDATE;

-- anything_parked: whether any parked event is due or will be retried, for a drain. A delayed event
-- counts only once its time has come.
SELECT EXISTS (SELECT 1 FROM outbox_parked
                WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL
                  AND (`delayed` = 0 OR due_at <= :now));

-- new_events: the events after a poll's last one. Payloads of more than `most` bytes are left out.
SELECT seq, e.type, CASE WHEN @payload_bytes@ <= :most THEN e.payload END
  FROM @events@ WHERE seq > :seq ORDER BY seq LIMIT :max;

-- put_progress: records the newest epoch, if there is one, and counts deliveries for operators.
UPDATE outbox_consumer SET epoch = greatest(epoch, :epoch), delivered = delivered + :n
 WHERE name = :consumer;

-- put_claim: grants the lease. A fresh claim holds the events of its lane, or of all lanes (-1),
-- after from_seq, up to and including to_seq; a parked claim holds the parked rows that it lists
-- and that name its epoch. boot and ahead identify the clock: see shorten_lease.
INSERT INTO outbox_claim (consumer, epoch, lane, parked, from_seq, to_seq, owner, locked_until,
                          lease, blamed, boot, ahead)
VALUES (:consumer, :epoch, :lane, :parked, :from_seq, :to_seq, :owner, :now + :lease,
        :lease, :blamed, nullif(:boot, 0), :ahead);

-- extend_claim: extends the claim by another lease, unless another worker has taken it over.
-- absolve: from now on, its event is not blamed if the worker vanishes.
UPDATE outbox_claim
   SET locked_until = :now + :lease, lease = :lease,
       blamed = CASE WHEN :absolve THEN 0 ELSE blamed END, boot = nullif(:boot, 0), ahead = :ahead
 WHERE consumer = :consumer AND epoch = :epoch AND owner = :owner;

-- all_claims: the claims of a consumer, with every column that a turn needs.
SELECT epoch, lane, parked, from_seq, to_seq, owner, locked_until, lease, blamed, boot, ahead
  FROM outbox_claim WHERE consumer = :consumer ORDER BY epoch;

-- shorten_lease: sets when a lease ends by our clock.
UPDATE outbox_claim SET locked_until = :until, ahead = :ahead
 WHERE consumer = :consumer AND epoch = :epoch;

-- is_claimed: an owner may settle late, as long as no worker has taken the claim over.
SELECT 1 FROM outbox_claim
 WHERE consumer = :consumer AND epoch = :epoch AND owner = :owner FOR UPDATE;

-- drop_claim: the claim was settled or taken over.
DELETE FROM outbox_claim WHERE consumer = :consumer AND epoch = :epoch;

-- claim_owners: the owner of each claim.
SELECT epoch, owner FROM outbox_claim WHERE consumer = :consumer ORDER BY epoch;

-- lane_found: the position of a lane, and whether the consumer has parked events.
SELECT position, EXISTS (SELECT 1 FROM outbox_parked WHERE consumer = :consumer)
  FROM outbox_lane WHERE consumer = :consumer AND lane = :lane;

-- fresh_events: the next events. seq is commit order: no later commit adds one before those read.
SELECT @chunk_columns@ FROM @events@ WHERE seq > :position ORDER BY seq LIMIT :max;

-- payload_of: a payload that fresh_events left out.
SELECT e.payload FROM @events@ WHERE seq = :seq;

-- key_parked: whether the key has parked events, for which a fresh event waits.
SELECT 1 FROM outbox_parked WHERE consumer = :consumer AND `key` = :key LIMIT 1;

-- parked_keys: the keys that have parked events, in the order of the index.
SELECT `key` FROM outbox_parked @by_key@
 WHERE consumer = :consumer AND `key` <> 0 LIMIT :max;

-- next_due: when the first parked event falls due. With suspect = 0 suspect events are left out.
SELECT due_at FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL AND (crashes > 0) <= :suspect
 ORDER BY due_at LIMIT 1;

-- suspect_due: whether a suspect event is due that the caller may not claim now.
SELECT 1 FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at <= :now AND crashes > 0 LIMIT 1;

-- clock_repair: limits waits to the requested length, in case the clock was ahead.
UPDATE outbox_parked SET due_at = :now + wait
 WHERE consumer = :consumer AND claim IS NULL AND `delayed` = 0 AND due_at > :now + wait;

-- due_heads: events that are due, longest overdue first, and whether others of their key are parked
-- before and behind them. alone: suspect events are claimed alone.
SELECT @parked_columns@, crashes > 0 AND :alone,
       p.`key` <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b @by_key@
                                    WHERE b.consumer = p.consumer AND b.`key` = p.`key`
                                      AND b.seq < p.seq),
       p.`key` <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b @by_key@
                                    WHERE b.consumer = p.consumer AND b.`key` = p.`key`
                                      AND b.seq > p.seq)
  FROM outbox_parked p
 WHERE p.consumer = :consumer AND p.claim IS NULL AND p.due_at <= :now
   AND (p.crashes > 0) <= :suspect
 ORDER BY p.due_at, p.seq LIMIT :max;

-- followers: the events parked behind an event of their key. The last column marks where to stop.
SELECT @parked_columns@, (crashes > 0 AND :alone) OR claim IS NOT NULL OR due_at IS NOT NULL,
       0, 0
  FROM outbox_parked @by_key@
 WHERE consumer = :consumer AND `key` = :key AND seq > :seq ORDER BY seq LIMIT :max;

-- one_event: the event of a parked row.
SELECT @chunk_columns@ FROM @events@ WHERE seq = :seq;

-- one_letter: the same after the event was trimmed. A dead letter carries the whole event.
SELECT @letter_columns@ FROM outbox_dead WHERE consumer = :consumer AND seq = :seq;

-- range_events: the events of a fresh claim, among those of other lanes.
SELECT @chunk_columns@ FROM @events@
 WHERE seq > :from_seq AND seq <= :to_seq ORDER BY seq LIMIT :max;

-- poison_of: the only event of a claim, if it used up its last attempt when its worker vanished.
SELECT seq, attempts + 1, `key` FROM outbox_parked
 WHERE consumer = :consumer AND claim = :epoch @and_taken@
   AND attempts + 1 >= :max_attempts
 LIMIT 1;

-- unpark_claim: the events of a parked claim wait again, and one more crash is counted. If an event
-- is to blame, that counts as an attempt. If not, then from the fourth crash on each event is
-- retried at a separate time, at first within 2 s, later within a minute: eventually the culprit is
-- alone.
UPDATE outbox_parked
   SET due_at = CASE WHEN :blamed OR crashes < 3 OR due_at IS NULL THEN due_at
                     ELSE :now + @apart@ END,
       wait = CASE WHEN :blamed OR crashes < 3 THEN wait ELSE @apart@ END,
       attempts = attempts + :blamed, crashes = crashes + 1, claim = NULL
 WHERE consumer = :consumer AND claim = :epoch @and_taken@;

-- is_last: whether nothing was handed out after this range. The position may have moved past events
-- that were only skipped. For a claim of all lanes (lane -1), all of them must still be at the same
-- position.
SELECT min(position) = max(position)
       AND (min(position) = :to_seq
            OR (:ordered AND NOT EXISTS (SELECT 1 FROM outbox_claim
                                          WHERE consumer = :consumer AND parked = 0
                                            AND (lane = :lane OR lane < 0 OR :lane < 0)
                                            AND from_seq >= :to_seq AND to_seq > from_seq)))
  FROM outbox_lane
 WHERE consumer = :consumer AND (lane = :lane OR :lane < 0);

-- release: returns the end of the last range.
UPDATE outbox_lane SET position = :position
 WHERE consumer = :consumer AND (lane = :lane OR :lane < 0);
