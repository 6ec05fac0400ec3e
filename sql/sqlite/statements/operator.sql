-- operator.sql: statements about consumers, inspections and retention that are specific to SQLite.

-- put_lane: a position may lie beyond the head, but the highest number that was handed out cannot;
-- see @began_again@ in claim.sql.
INSERT INTO outbox_lane (consumer, lane, position, high, high_id)
SELECT :consumer, :lane, :position, min(:position, :head),
       (SELECT id FROM outbox_event WHERE seq = min(:position, :head));

-- event_by_id: the event with this id.
SELECT @event_columns@ FROM @events@ WHERE id = :id;

-- @exceptional@: events that may be in a state, because something is recorded about them.
@events@ WHERE seq > :low AND seq <= :high AND seq IN (@recorded@);

-- lock_trim: SQLite has one writer at a time.
NONE;

-- drop_going_rows: their source rows in adopted tables are no longer needed.
DELETE FROM outbox_adopted_row
 WHERE EXISTS (SELECT 1 FROM outbox_adopted WHERE mark IS NOT NULL)
   AND event_id IN (SELECT id FROM @events@ WHERE @going@);

-- allow_changes: events may be changed from here to refuse_changes (), in this transaction.
INSERT OR IGNORE INTO outbox_meta (name, value) VALUES ('change_events', '');

-- refuse_changes: events are insert-only again.
DELETE FROM outbox_meta WHERE name = 'change_events';

-- drop_going: deletes them.
DELETE FROM outbox_event AS e WHERE @going@;

-- drop_places: SQLite has no separate table of places.
NONE;

-- @keys_of_going@: an idempotency key is deleted with its event.
FROM @events@ WHERE @going@ AND +e.idempotency_key IS NOT NULL;

-- count_going_keys: whether there is any key to delete.
SELECT count(*) @keys_of_going@;

-- drop_going_keys: deletes them, before their events.
DELETE FROM outbox_idempotency WHERE key IN (SELECT idempotency_key @keys_of_going@);

-- @left_over_keys@: keys of events that were deleted by hand. Only keys older than the oldest event
-- are considered: hardly any other can be left over.
FROM outbox_idempotency
 WHERE at < min(:cutoff,
                coalesce((SELECT created_at FROM outbox_event ORDER BY seq LIMIT 1), :cutoff))
   AND NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.id = event_id);

-- count_left_over_keys: for a dry run.
SELECT count(*) FROM (SELECT 1 @left_over_keys@ LIMIT :most);

-- drop_left_over_keys: deletes the oldest of them.
DELETE FROM outbox_idempotency WHERE key IN (SELECT key @left_over_keys@ ORDER BY at LIMIT :max);

-- drop_old_inbox: deletes the oldest records from before the cutoff.
DELETE FROM outbox_handled
 WHERE (handler, key) IN (SELECT handler, key FROM outbox_handled
                           WHERE at < :cutoff ORDER BY at LIMIT :max);

-- drop_old_receipts: deletes the oldest receipts from before the cutoff.
DELETE FROM outbox_receipt
 WHERE (consumer, seq) IN (SELECT consumer, seq FROM outbox_receipt
                            WHERE at < :cutoff ORDER BY at LIMIT :max);

-- drop_ended: deletes the records of individual events that were deleted.
DELETE FROM outbox_ended
 WHERE seq <= :last
   AND NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.seq = outbox_ended.seq);

-- lost_keyed: of the newest idempotency keys, those whose event is gone.
SELECT count(*) FROM (SELECT event_id FROM outbox_idempotency ORDER BY at DESC LIMIT :max) k
 WHERE NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.id = k.event_id);

-- count_guards: the triggers that keep events as they were inserted.
SELECT count(*) FROM sqlite_master
 WHERE type = 'trigger' AND tbl_name = 'outbox_event'
   AND name IN ('outbox_event_inserted', 'outbox_event_updated', 'outbox_event_deleted');

-- changes_allowed: whether a session has left the permission to change events in place.
SELECT count(*) FROM outbox_meta WHERE name = 'change_events';

-- has_table: whether the database has anything of this name.
SELECT count(*) FROM sqlite_master WHERE name = :name;

-- touch_log: a first read makes SQLite create the write-ahead log.
SELECT 1 FROM outbox_meta LIMIT 1;
