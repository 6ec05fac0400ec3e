-- _adopt_decided raises an error where nobody can tell which rows of a table became events before,
-- unless `existing` ('copy' or 'skip'; NULL: not given) decides what happens to them. there says
-- whether the table is adopted now.
CREATE OR REPLACE FUNCTION @schema@._adopt_decided(tab regclass, there boolean, existing text)
RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF existing NOT IN ('copy', 'skip') THEN
        RAISE EXCEPTION 'existing "%" is not one of copy, skip', existing
            USING ERRCODE = 'OB004';
    END IF;
    IF there AND existing = 'copy' THEN
        RAISE EXCEPTION 'table % is adopted: its rows became events when it was, and copied again '
                        'they would be delivered twice', tab
            USING ERRCODE = 'OB001', HINT = 'leave existing out, or undo the adoption first';
    END IF;
    -- It was adopted once, and is not now. Rows from that time have become events, later ones have
    -- not, and the table does not say which is which.
    IF NOT there AND existing IS NULL
       AND EXISTS (SELECT 1 FROM @schema@.meta m WHERE m.name = @schema@._adopted_name(tab)) THEN
        RAISE EXCEPTION 'table % was adopted before, and which of its rows became events then '
                        'cannot be told', tab
            USING ERRCODE = 'OB001',
                  HINT = 'existing copy makes events of all that are not processed; '
                         'existing skip begins with new ones';
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_decided(regclass, boolean, text) IS
    'refuses to adopt without a decision about old rows';

-- _adopted_name returns the name under which meta remembers that a table was adopted once. It is
-- made of the table's name, not of its oid, which a dump and restore would change.
CREATE OR REPLACE FUNCTION @schema@._adopted_name(tab regclass) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT format('adopted %I.%I', c.relnamespace::regnamespace::text, c.relname)
    FROM pg_catalog.pg_class c
    WHERE c.oid = tab
$outbox$;
COMMENT ON FUNCTION @schema@._adopted_name(regclass) IS
    'the name by which meta remembers an adopted table';
