-- Triggers of the outbox's tables.

-- Records the idempotency key of an inserted event. If it was used with the same content, the row
-- is left out: INSERT reports 0 rows. With another type, aggregate or payload it is an error. If
-- another open transaction uses the key, this one waits for it. trim deletes a key with its event
-- or later.
CREATE OR REPLACE FUNCTION @schema@._take_key() RETURNS trigger
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE -- Every name is schema-qualified.
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
    IF FOUND THEN RETURN NEW; END IF;

    -- A key that the caller may not read has unknown content: also an error.
    SELECT i.event_id, i.hash INTO known FROM @schema@.idempotency i
    WHERE i.key OPERATOR(pg_catalog.=) NEW.idempotency_key
      AND i.tenant OPERATOR(pg_catalog.=) whose;
    IF known.hash IS NULL OR known.hash OPERATOR(pg_catalog.<>) content THEN
        RAISE EXCEPTION 'idempotency key "%" was used before with another type, '
            'aggregate or payload (event %)',
            pg_catalog.left(NEW.idempotency_key, 100), known.event_id USING ERRCODE = 'OB001';
    END IF;
    RETURN NULL;
END $outbox$;
CREATE OR REPLACE TRIGGER take_key BEFORE INSERT ON @schema@.event
    FOR EACH ROW WHEN (NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION @schema@._take_key();

-- Refuses statements that would change or delete events, unless outbox.change_events is set, as
-- trim, rebaseline and an owner who has to delete an event do (docs/operations.md). It does not run
-- for replicated or restored rows.
CREATE OR REPLACE FUNCTION @schema@._insert_only() RETURNS trigger
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN -- Every name is schema-qualified.
    IF pg_catalog.current_setting('outbox.change_events', true) OPERATOR(pg_catalog.=) 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'events are insert-only: % on %.event is refused, nothing was changed',
        TG_OP, TG_TABLE_SCHEMA
        USING ERRCODE = 'OB004',
            HINT = '`outbox trim` or outbox.trim() deletes old events; to insert once, give an '
                   'idempotency_key; to revoke an event, emit another one; to erase one: '
                   'SET LOCAL outbox.change_events = ''on''';
END $outbox$;
CREATE OR REPLACE TRIGGER insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON @schema@.event
    FOR EACH STATEMENT EXECUTE FUNCTION @schema@._insert_only();

-- Records that a dead letter was deleted, and its event never delivered. The record is kept as long
-- as the event. It is not called for one that was sent back and is being settled.
CREATE OR REPLACE FUNCTION @schema@._note_drop() RETURNS trigger LANGUAGE plpgsql AS $outbox$
BEGIN
    INSERT INTO @schema@.ended AS x (seq, consumer, state)
    SELECT OLD.seq, OLD.consumer, 'dropped'
    WHERE EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = OLD.seq)
    ON CONFLICT ON CONSTRAINT ended_pkey DO UPDATE SET state = excluded.state;
    RETURN NULL;
END $outbox$;
CREATE OR REPLACE TRIGGER note_drop AFTER DELETE ON @schema@.dead FOR EACH ROW
    WHEN (NOT OLD.retrying) EXECUTE FUNCTION @schema@._note_drop();
