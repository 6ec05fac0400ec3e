-- uuid7: a new event id, as event.id has it by default. For whoever has to know it without the right to read events.
CREATE OR REPLACE FUNCTION @schema@.uuid7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $outbox$
    SELECT encode(set_byte(overlay(uuid_send(gen_random_uuid()) PLACING
               substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
               6, 112 + (random() * 15)::int), 'hex')::uuid
$outbox$;
COMMENT ON FUNCTION @schema@.uuid7() IS 'a new event id';
