-- _lane_of returns which of a consumer's lanes, from 0 to lanes - 1, an event belongs to: by the
-- hash of its key, or by its seq if it has none. The mask makes the hash positive.
CREATE OR REPLACE FUNCTION @schema@._lane_of(
    lanes int, seq bigint, aggregate_type text, aggregate_id text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
           WHEN lanes = 1 THEN 0
           WHEN aggregate_id IS NULL THEN (seq % lanes)::int
           ELSE ((hashtextextended(coalesce(aggregate_type, '') || chr(1) || aggregate_id, 0)
                  & 9223372036854775807) % lanes)::int
       END;
COMMENT ON FUNCTION @schema@._lane_of(int, bigint, text, text) IS 'the lane of an event';
