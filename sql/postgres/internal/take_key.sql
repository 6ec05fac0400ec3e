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
COMMENT ON FUNCTION @schema@._take_key() IS
    'takes the idempotency key of an event, or leaves the event out';
CREATE OR REPLACE TRIGGER take_key BEFORE INSERT ON @schema@.event
    FOR EACH ROW WHEN (NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION @schema@._take_key();
