-- uuid7: a new event id, as event.id has it by default. For whoever has to know it without the right to read events.
CREATE OR REPLACE FUNCTION @schema@.uuid7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN encode(int8send((date_part('epoch', clock_timestamp()) * 1000)::bigint << 16 | 28672 | (random() * 4095)::int)
                  || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid;
COMMENT ON FUNCTION @schema@.uuid7() IS 'a new event id';
