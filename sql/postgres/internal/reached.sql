-- _reached: up to which seq a lane has seen that all numbers were given out: no event up to it can be new. NULL: it is no witness.
-- Where a consumer starts (start_at) somebody said, and is further than anything it has seen.
CREATE OR REPLACE FUNCTION @schema@._reached(c @schema@.consumer, l @schema@.lane) RETURNS bigint
LANGUAGE sql STABLE
RETURN CASE WHEN ($2).window_end IS NULL THEN NULL
            WHEN ($2).target IS NOT NULL AND ($2).next_floor > ($2).window_end THEN NULL
            WHEN ($2).target IS NOT NULL THEN ($2).next_floor
            WHEN ($2).floor <= ($1).start_floor AND ($1).start_seen::text = '1:1:' THEN NULL
            ELSE least(($2).floor, ($2).window_end) END;
COMMENT ON FUNCTION @schema@._reached(@schema@.consumer, @schema@.lane) IS 'up to which number no event can be new to a lane';
