-- _as_type makes an event type of what an adopted table calls it: without white space or control
-- characters, not empty, not too long.
CREATE OR REPLACE FUNCTION @schema@._as_type(value text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(nullif(left(regexp_replace(value, '[[:space:][:cntrl:]]+', '_', 'g'), 255), ''),
                'unknown');
COMMENT ON FUNCTION @schema@._as_type(text) IS 'text as an event type';
