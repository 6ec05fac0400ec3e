-- _uuid7 returns a new event id, made as the default of event.id makes one. It is for callers that
-- have to know the id and may not read events.
--
-- It is a random UUID (version 4) whose first 16 digits are replaced by the time and the version:
-- 48 bits of milliseconds since 1970, then 12 bits of their fraction, so that ids grow within a
-- millisecond, too. To make one and insert a row takes longer than a microsecond.
CREATE OR REPLACE FUNCTION @schema@._uuid7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN overlay(gen_random_uuid()::text,
               overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint),
                            15, '0'), '7', 13, 0),
               1, 18)::uuid;
COMMENT ON FUNCTION @schema@._uuid7() IS 'a new event id';
