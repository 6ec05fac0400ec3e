-- _insert_only keeps events as they were inserted: a statement that would change or delete some is
-- refused as a whole, be it by mistake or by a way of writing "insert once" (ON CONFLICT DO
-- UPDATE). trim and rebaseline, which have reasons and check them, set outbox.change_events for the
-- statement that does it. An owner who has to delete an event does the same (docs/operations.md).
--
-- It runs once for a statement. Replication and restores bring rows in as they were: there it does
-- not run, or is not there yet.
CREATE OR REPLACE FUNCTION @schema@._insert_only() RETURNS trigger
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN -- Every name has its schema.
    IF pg_catalog.current_setting('outbox.change_events', true) OPERATOR(pg_catalog.=) 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'events are insert-only: % on %.event is refused, nothing was changed',
        TG_OP, TG_TABLE_SCHEMA
        USING ERRCODE = 'OB004',
            HINT = 'old events go with `outbox trim` or outbox.trim(); to insert once, give an '
                   'idempotency_key; to take something back, emit another event; to erase one: '
                   'SET LOCAL outbox.change_events = ''on''';
END
$outbox$;
COMMENT ON FUNCTION @schema@._insert_only() IS 'refuses to change or delete events';
CREATE OR REPLACE TRIGGER insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON @schema@.event
    FOR EACH STATEMENT EXECUTE FUNCTION @schema@._insert_only();
