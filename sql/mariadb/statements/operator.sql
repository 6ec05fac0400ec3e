-- operator.sql: consumers, inspections and retention, as far as MariaDB has its own text.

-- lock_to_settle (consumer text): does the same, and returns whether rows of a table are marked
-- once this consumer has had them, and which keys are held up.
SELECT EXISTS (SELECT 1 FROM outbox_marking m WHERE m.consumer = :consumer), parked_stamp
  FROM outbox_consumer WHERE name = :consumer FOR UPDATE;

-- put_lane (consumer text, lane int, position int): where a lane begins.
INSERT INTO outbox_lane (consumer, lane, position) VALUES (:consumer, :lane, :position);

-- head (): the highest seq ever given; its event may be gone.
SELECT next - 1 FROM outbox_sequencer WHERE one = 1;

-- event_by_id (id text): the event with this id.
SELECT @event_columns@ FROM outbox_event e STRAIGHT_JOIN outbox_order o ON o.nr = e.nr
 WHERE e.id = :id;

-- @exceptional@: events that may be in a state, because something is recorded about them.
(SELECT DISTINCT seq FROM (@recorded@) noted WHERE seq > :low AND seq <= :high) x;

-- exceptional_forwards (low int, high int, state text, consumer text, now int, max int): oldest
-- first; consumer NULL: of any.
SELECT @event_columns@
  FROM @exceptional@ STRAIGHT_JOIN outbox_order o ON o.seq = x.seq
  STRAIGHT_JOIN outbox_event e ON e.nr = o.nr
 ORDER BY o.seq LIMIT :max;

-- exceptional_backwards (low int, high int, state text, consumer text, now int, max int): newest
-- first.
SELECT @event_columns@
  FROM @exceptional@ STRAIGHT_JOIN outbox_order o ON o.seq = x.seq
  STRAIGHT_JOIN outbox_event e ON e.nr = o.nr
 ORDER BY o.seq DESC LIMIT :max;

-- claim_over (consumer text, lane int, seq int, now int, live int, expired int): live or expired,
-- whichever the fresh claim over this event is; NULL if no claim spans it.
SELECT max(IF(locked_until > :now, :live, :expired)) FROM outbox_claim
 WHERE consumer = :consumer AND parked = 0 AND lane = :lane AND from_seq < :seq AND to_seq >= :seq;

-- lock_trim (): one trims or adds a consumer at a time.
SELECT 1 FROM outbox_meta WHERE name = 'trim' FOR UPDATE;

-- put_passed (consumer text, floor int, now int, every int): samples how far a consumer has come,
-- unless the last sample is recent.
INSERT INTO outbox_passed (consumer, seq, at)
SELECT :consumer, :floor, :now FROM DUAL
 WHERE NOT EXISTS (SELECT 1 FROM (SELECT seq, at FROM outbox_passed
                                   WHERE consumer = :consumer ORDER BY seq DESC LIMIT 1) last
                    WHERE seq = :floor OR at > :now - :every);

-- @going@: the events that go. One whose created_at is ahead of the clock counts as old as the next
-- event whose created_at is not.
o.seq <= :last AND (e.created_at < :cutoff OR e.created_at > :now);

-- count_going_keys (last int, cutoff int, now int): an idempotency key goes with its event.
SELECT count(*) FROM @events@ WHERE @going@ AND e.idempotency_key IS NOT NULL;

-- drop_going_keys (last int, cutoff int, now int): the key is a column of the event.
NONE;

-- count_left_over_keys (cutoff int, most int): likewise.
NONE;

-- drop_left_over_keys (cutoff int, max int): likewise.
NONE;

-- drop_going_rows (last int, cutoff int, now int): their source rows in adopted tables are no
-- longer needed.
DELETE r FROM @events@ STRAIGHT_JOIN outbox_adopted_row r ON r.nr = e.nr WHERE @going@;

-- allow_changes (): events may be deleted from here to refuse_changes (), by this session.
SET @outbox_change_events = 'on';

-- refuse_changes (): events are insert-only again.
SET @outbox_change_events = NULL;

-- drop_going (last int, cutoff int, now int): deletes them.
DELETE e FROM @events@ WHERE @going@;

-- drop_places (last int): the places of events that are gone, even those deleted by hand.
DELETE o FROM outbox_order o LEFT JOIN outbox_event e ON e.nr = o.nr
 WHERE o.seq <= :last AND e.nr IS NULL;

-- drop_old_inbox (cutoff int, max int): forgets what was handled longer ago than the inbox is kept.
DELETE FROM outbox_handled WHERE at < :cutoff ORDER BY at LIMIT :max;

-- drop_old_receipts (cutoff int, max int): deletes the oldest receipts from before the cutoff.
DELETE FROM outbox_receipt WHERE at < :cutoff ORDER BY at LIMIT :max;

-- drop_ended (last int): what is recorded about a single event goes with it.
DELETE x FROM outbox_ended x LEFT JOIN outbox_order o ON o.seq = x.seq
 WHERE x.seq <= :last AND o.seq IS NULL;
