-- doctor.sql: checks for problems of an outbox.

-- lost_keyed (max int): of the newest idempotency keys, those whose event is gone: trim deletes a
-- key before its event.
SELECT count(*) FROM (SELECT event_id FROM outbox_idempotency ORDER BY at DESC LIMIT :max) k
 WHERE NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.id = k.event_id);

-- count_guards (): the triggers that keep events as they were inserted.
SELECT count(*) FROM sqlite_master
 WHERE type = 'trigger' AND tbl_name = 'outbox_event'
   AND name IN ('outbox_event_inserted', 'outbox_event_updated', 'outbox_event_deleted');

-- changes_allowed (): whether a session has left the permission to change events in place.
SELECT count(*) FROM outbox_meta WHERE name = 'change_events';

-- has_table (name text): whether the database has anything of this name.
SELECT count(*) FROM sqlite_master WHERE name = :name;

-- touch_log (): a first read makes SQLite create the write-ahead log.
SELECT 1 FROM outbox_meta LIMIT 1;
