-- _low returns the seq up to which every lane of a consumer, which has `lanes` of them, is past
-- everything but what was late: events of transactions that were running when a lane looked. NULL:
-- its rows in lane are gone. Past what the target neither shows nor names, nothing is known by its
-- seq alone.
CREATE OR REPLACE FUNCTION @schema@._low(consumer text, lanes int) RETURNS bigint
LANGUAGE sql STABLE AS $outbox$
    SELECT min(CASE WHEN l.target IS NULL THEN l.floor
                    ELSE least(greatest(l.floor, l.pos), l.next_floor) END)
    FROM @schema@._lanes(_low.consumer, _low.lanes) l
    WHERE l.lane >= 0
$outbox$;
COMMENT ON FUNCTION @schema@._low(text, int) IS 'up to where a consumer is past what was not late';
