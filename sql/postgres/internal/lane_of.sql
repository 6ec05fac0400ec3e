-- _lane_of: which of `lanes` lanes an event belongs to: by its aggregate, or by seq without one.
CREATE OR REPLACE FUNCTION @schema@._lane_of(lanes int, seq bigint, aggregate_type text, aggregate_id text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
        WHEN $1 = 1 THEN 0
        WHEN $4 IS NULL THEN ($2 % $1)::int
        ELSE ((hashtextextended(coalesce($3, '') || chr(1) || $4, 0) & 9223372036854775807) % $1)::int
    END;
COMMENT ON FUNCTION @schema@._lane_of(int, bigint, text, text) IS 'the lane of an event';
