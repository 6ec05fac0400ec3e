-- _before_start: whether an event came before the consumer, as it was told to start: it was never its own.
CREATE OR REPLACE FUNCTION @schema@._before_start(start_seen pg_snapshot, start_floor bigint, start_also bigint[], xid xid8,
                                                 seq bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(@schema@._handed_out($1, $2, NULL, 0, $4, $5), false) OR coalesce($5 = ANY ($3), false);
COMMENT ON FUNCTION @schema@._before_start(pg_snapshot, bigint, bigint[], xid8, bigint) IS
    'whether an event came before a consumer';
