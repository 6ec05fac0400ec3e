-- next_epoch: grows with every call. The lower bits are random: a server that lost its last moments, or one that took over
-- from it, may give the same number of the sequence again, but not the same epoch.
CREATE OR REPLACE FUNCTION @schema@.next_epoch() RETURNS bigint
LANGUAGE sql VOLATILE AS $outbox$
    SELECT (nextval('@schema@.epoch') << 20) | (random() * 1048575)::bigint
$outbox$;
COMMENT ON FUNCTION @schema@.next_epoch() IS 'the fence of the next claim';
