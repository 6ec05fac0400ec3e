-- uuid7: a new event id, as event.id has it by default. For whoever has to know it without the right to read events. A random
-- one (version 4), with the milliseconds since 1970 and the version in place of its first 13 digits.
CREATE OR REPLACE FUNCTION @schema@.uuid7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN overlay(gen_random_uuid()::text, lpad(to_hex((date_part('epoch', clock_timestamp()) * 1000)::bigint), 12, '0') || '7',
               1, 15)::uuid;
COMMENT ON FUNCTION @schema@.uuid7() IS 'a new event id';
