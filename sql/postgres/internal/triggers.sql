-- Triggers of our tables.

-- _take_key takes the idempotency key of an event, whichever way the event is inserted. If the key
-- is known with the same content, the row is left out: INSERT reports 0 rows, and RETURNING gives
-- none. If it is known with another type, aggregate or payload, an error is raised. If another
-- transaction is about to use the same key, this one waits for it, and takes the key if the other
-- is rolled back.
--
-- A key is known until trim deletes it: for retention at least, and for as long as its event is
-- kept. Each tenant has its own keys. An INSERT without a key does not come here.
CREATE OR REPLACE FUNCTION @schema@._take_key() RETURNS trigger
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE -- Every name has its schema.
    content bigint := pg_catalog.hashtextextended(
        pg_catalog.concat_ws(pg_catalog.chr(1),
                             NEW.type::pg_catalog.text,
                             coalesce(NEW.aggregate_type::pg_catalog.text, pg_catalog.chr(2)),
                             coalesce(NEW.aggregate_id::pg_catalog.text, pg_catalog.chr(2)),
                             NEW.payload::pg_catalog.text), 0);
    whose pg_catalog.text := coalesce(NEW.tenant::pg_catalog.text, '');
    known record;
BEGIN
    IF pg_catalog.octet_length(NEW.idempotency_key) OPERATOR(pg_catalog.>) 1024
       OR NEW.idempotency_key OPERATOR(pg_catalog.!~) '^[^\u0001-\u001f\u007f-\u009f]+$' THEN
        RAISE EXCEPTION 'idempotency_key: 1 to 1024 bytes, no control character'
            USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO @schema@.idempotency (tenant, key, event_id, hash)
    VALUES (whose, NEW.idempotency_key, NEW.id, content)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN NEW;
    END IF;

    -- A key that conflicts and cannot be read may stand for anything, so that is an error as well.
    SELECT i.event_id, i.hash INTO known FROM @schema@.idempotency i
    WHERE i.key OPERATOR(pg_catalog.=) NEW.idempotency_key
      AND i.tenant OPERATOR(pg_catalog.=) whose;
    IF known.hash IS NULL OR known.hash OPERATOR(pg_catalog.<>) content THEN
        RAISE EXCEPTION 'idempotency key "%" was used before with another type, '
            'aggregate or payload (event %)',
            pg_catalog.left(NEW.idempotency_key, 100), known.event_id USING ERRCODE = 'OB001';
    END IF;
    RETURN NULL;
END
$outbox$;
CREATE OR REPLACE TRIGGER take_key BEFORE INSERT ON @schema@.event
    FOR EACH ROW WHEN (NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION @schema@._take_key();

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
CREATE OR REPLACE TRIGGER insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON @schema@.event
    FOR EACH STATEMENT EXECUTE FUNCTION @schema@._insert_only();

-- _note_drop records that a dead letter was dropped, and so its event never delivered. The record
-- lasts as long as the event. The trigger calls it for each dead letter that any session deletes,
-- unless it had been sent back and is being settled.
CREATE OR REPLACE FUNCTION @schema@._note_drop() RETURNS trigger
LANGUAGE plpgsql AS $outbox$
BEGIN
    INSERT INTO @schema@.ended AS x (seq, consumer, state)
    SELECT OLD.seq, OLD.consumer, 'dropped'
    WHERE EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = OLD.seq)
    ON CONFLICT ON CONSTRAINT ended_pkey DO UPDATE SET state = excluded.state;
    RETURN NULL;
END
$outbox$;
CREATE OR REPLACE TRIGGER note_drop AFTER DELETE ON @schema@.dead FOR EACH ROW
    WHEN (NOT OLD.retrying) EXECUTE FUNCTION @schema@._note_drop();
