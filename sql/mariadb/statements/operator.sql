-- operator.sql: statements about consumers, inspections and retention that are specific to MariaDB.

-- put_lane: where a lane begins.
INSERT INTO outbox_lane (consumer, lane, position) VALUES (:consumer, :lane, :position);

-- head: the highest seq ever assigned; its event may have been deleted.
SELECT next - 1 FROM outbox_sequencer WHERE one = 1;

-- event_by_id: the event with this id.
SELECT @event_columns@ FROM outbox_event e STRAIGHT_JOIN outbox_order o ON o.nr = e.nr
 WHERE e.id = :id;

-- @exceptional@: events that may be in a state, because something is recorded about them.
(SELECT DISTINCT seq FROM (@recorded@) noted WHERE seq > :low AND seq <= :high) x
STRAIGHT_JOIN outbox_order o ON o.seq = x.seq STRAIGHT_JOIN outbox_event e ON e.nr = o.nr;

-- lock_trim: one session at a time trims or adds a consumer.
SELECT 1 FROM outbox_meta WHERE name = 'trim' FOR UPDATE;

-- count_going_keys: an idempotency key is deleted with its event.
SELECT count(*) FROM @events@ WHERE @going@ AND e.idempotency_key IS NOT NULL;

-- drop_going_keys: the key is a column of the event.
NONE;

-- count_left_over_keys: likewise.
NONE;

-- drop_left_over_keys: likewise.
NONE;

-- drop_going_rows: their source rows in adopted tables are no longer needed.
DELETE r FROM @events@ STRAIGHT_JOIN outbox_adopted_row r ON r.nr = e.nr WHERE @going@;

-- allow_changes: events may be deleted from here to refuse_changes (), by this session.
SET @outbox_change_events = 'on';

-- refuse_changes: events are insert-only again.
SET @outbox_change_events = NULL;

-- drop_going: deletes them.
DELETE e FROM @events@ WHERE @going@;

-- drop_places: deletes the places of deleted events, even those deleted by hand.
DELETE o FROM outbox_order o LEFT JOIN outbox_event e ON e.nr = o.nr
 WHERE o.seq <= :last AND e.nr IS NULL;

-- drop_old_inbox: deletes the oldest records from before the cutoff.
DELETE FROM outbox_handled WHERE at < :cutoff ORDER BY at LIMIT :max;

-- drop_old_receipts: deletes the oldest receipts from before the cutoff.
DELETE FROM outbox_receipt WHERE at < :cutoff ORDER BY at LIMIT :max;

-- drop_ended: deletes the records of individual events that were deleted.
DELETE x FROM outbox_ended x LEFT JOIN outbox_order o ON o.seq = x.seq
 WHERE x.seq <= :last AND o.seq IS NULL;
