-- _as_uuid returns the id of an adopted table's row if it is a UUID, else NULL. It checks the text
-- before the cast, which would fail, and with it the INSERT of the row.
CREATE OR REPLACE FUNCTION @schema@._as_uuid(value text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
            THEN value::uuid END;
COMMENT ON FUNCTION @schema@._as_uuid(text) IS 'text as an event id, if it can be one';
