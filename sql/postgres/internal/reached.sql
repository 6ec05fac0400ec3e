-- _reached returns the seq up to which lane l has seen all numbers given out, so that no event up
-- to it can be new to the lane. NULL: the lane cannot tell. Where a consumer starts (start_at) does
-- not count: somebody chose it, and it may be ahead of anything the lane has seen.
CREATE OR REPLACE FUNCTION @schema@._reached(c @schema@.consumer, l @schema@.lane) RETURNS bigint
LANGUAGE sql STABLE
RETURN CASE WHEN (l).window_end IS NULL THEN NULL
            WHEN (l).target IS NOT NULL AND (l).next_floor > (l).window_end THEN NULL
            WHEN (l).target IS NOT NULL THEN (l).next_floor
            WHEN (l).floor <= @include start_of((c))@ THEN NULL
            ELSE least((l).floor, (l).window_end) END;
COMMENT ON FUNCTION @schema@._reached(@schema@.consumer, @schema@.lane) IS
    'up to which number no event can be new to a lane';
