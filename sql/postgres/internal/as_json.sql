-- _as_json makes a payload of a value of an adopted table. Text that is JSON stays as it is; other
-- text becomes a JSON string. It never fails, because it runs inside somebody's INSERT.
CREATE OR REPLACE FUNCTION @schema@._as_json(value text) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT AS $outbox$
BEGIN
    RETURN value::json;
EXCEPTION WHEN data_exception OR statement_too_complex THEN -- the latter: nested too deeply
    RETURN to_json(value);
END
$outbox$;
COMMENT ON FUNCTION @schema@._as_json(text) IS 'text as a payload';

-- _as_json of bytes takes them as text if they are UTF-8, and else makes a string of their base64.
CREATE OR REPLACE FUNCTION @schema@._as_json(value bytea) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT AS $outbox$
BEGIN
    RETURN @schema@._as_json(convert_from(value, 'UTF8'));
EXCEPTION WHEN data_exception THEN
    RETURN to_json(replace(encode(value, 'base64'), E'\n', ''));
END
$outbox$;
COMMENT ON FUNCTION @schema@._as_json(bytea) IS 'bytes as a payload';
