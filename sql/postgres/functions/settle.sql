-- settle: records how a claim ended, and forgets it. What no outcome names was delivered. Outcomes, in the order the events
-- were handed out: [{"seq": 5, "kind": "retry", "attempts": 1, "delay_ms": 1000, "error": "..."}, ...]; attempts used up
-- by now may be left out, then this one is counted; kind is retry, dead,
-- behind (not tried: its key is held back), delay (not tried: its time has not come), skip (not wanted: the worker passed it
-- over, and it is shown as skipped) or delivered (with id and receipt, to keep a receipt). Events from release_from on were never tried: they are given back. Returns false, and does nothing, if
-- the claim is no longer the worker's. It may share a transaction with the effects of the delivery.
CREATE OR REPLACE FUNCTION @schema@.settle(consumer text, worker text, epoch bigint, outcomes jsonb DEFAULT '[]',
                                           release_from bigint DEFAULT 0) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    ours boolean;
    wrong bigint;
BEGIN
    IF jsonb_typeof(outcomes) IS DISTINCT FROM 'array' OR worker IS NULL OR epoch IS NULL THEN
        RAISE EXCEPTION 'settle takes a worker, an epoch and an array of outcomes' USING ERRCODE = 'OB004';
    END IF;
    SELECT min(o.seq) INTO wrong FROM jsonb_to_recordset(outcomes) AS o (seq bigint) WHERE o.seq >= nullif(release_from, 0);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'event % is given back, and has an outcome', wrong USING ERRCODE = 'OB004';
    END IF;
    SELECT NOT t.lost INTO ours
    FROM @schema@._turn(settle.consumer, worker, NULL,
                        ROW(settle.epoch,
                            (SELECT count(*) FROM @schema@._claimed(settle.consumer, settle.epoch) e
                             WHERE e.seq < settle.release_from OR settle.release_from = 0),
                            settle.outcomes, settle.release_from, NULL),
                        ROW(0, 0, 0, 0, false, false, 0, NULL, NULL, NULL, NULL, NULL),
                        ROW(-1, NULL, 0, 0, 0)) t;
    RETURN ours;
END
$outbox$;
COMMENT ON FUNCTION @schema@.settle(text, text, bigint, jsonb, bigint) IS 'records how a claim ended';

-- Drivers send JSON as json, or as text, or without saying as what, which then is text.
CREATE OR REPLACE FUNCTION @schema@.settle(consumer text, worker text, epoch bigint, outcomes json,
                                           release_from bigint DEFAULT 0) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN @schema@.settle($1, $2, $3, $4::jsonb, $5);
COMMENT ON FUNCTION @schema@.settle(text, text, bigint, json, bigint) IS 'records how a claim ended';

CREATE OR REPLACE FUNCTION @schema@.settle(consumer text, worker text, epoch bigint, outcomes text,
                                           release_from bigint DEFAULT 0) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN @schema@.settle($1, $2, $3, $4::jsonb, $5);
COMMENT ON FUNCTION @schema@.settle(text, text, bigint, text, bigint) IS 'records how a claim ended';
