-- _check_settings raises an error for arguments that register cannot take.
CREATE OR REPLACE FUNCTION @schema@._check_settings(
    consumer text, events text, predicate text, ordering text, lanes int, retry text,
    start_at text, how text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $outbox$
BEGIN
    IF consumer !~ '^[A-Za-z0-9_.-]{1,63}$' THEN
        RAISE EXCEPTION 'consumer name "%" is not 1 to 63 characters of A-Z a-z 0-9 _ . -', consumer
            USING ERRCODE = 'OB004';
    END IF;
    IF (ordering IN ('none', 'key', 'global') AND lanes BETWEEN 1 AND 64
        AND NOT (ordering = 'global' AND lanes > 1)) IS NOT TRUE THEN
        RAISE EXCEPTION 'ordering is none, key or global; lanes are 1 to 64, and 1 for global'
            USING ERRCODE = 'OB004';
    END IF;
    IF start_at NOT IN ('beginning', 'end') AND start_at !~ '^[0-9]{1,18}$' THEN
        RAISE EXCEPTION 'start_at "%" is not beginning, end or a seq', start_at
            USING ERRCODE = 'OB004';
    END IF;
    IF (how IN ('start', 'again', 'purpose')) IS NOT TRUE THEN
        RAISE EXCEPTION 'how "%" is not start, again or purpose', how USING ERRCODE = 'OB004';
    END IF;
    IF octet_length(events) > 65536 OR octet_length(predicate) > 65536
       OR octet_length(retry) > 1024 THEN
        RAISE EXCEPTION 'events and predicate are at most 64 KiB each, retry 1 KiB'
            USING ERRCODE = 'OB004';
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._check_settings(text, text, text, text, int, text, text, text) IS
    'refuses arguments that register cannot take';
