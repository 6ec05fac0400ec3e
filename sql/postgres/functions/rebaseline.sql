-- rebaseline: makes the outbox right after dump and restore into another cluster; returns whether there was anything to do.
-- Every kept event gets the transaction number of now, every lane starts before that, at its first event not handed out:
-- nothing is lost, and what was handed out behind a gap there may come again. Claims of the old place are taken over.
CREATE OR REPLACE FUNCTION @schema@.rebaseline() RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    snap pg_snapshot;
    c @schema@.consumer;
    l @schema@.lane;
    head bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('@schema@ migrate', 0));
    PERFORM @schema@.lock_consumer(x.name) FROM @schema@.consumer x ORDER BY x.name;
    IF NOT @schema@.moved() THEN
        RETURN false;
    END IF;
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'rebaseline needs a transaction of its own' USING ERRCODE = 'OB002';
    END IF;
    head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    snap := @schema@.name_running(pg_current_snapshot()); -- what this transaction writes comes after: its number is xmax
    IF snap IS NULL THEN
        RAISE EXCEPTION 'too many transactions are running: try again' USING ERRCODE = 'lock_not_available';
    END IF;
    FOR c IN SELECT * FROM @schema@.consumer LOOP
        UPDATE @schema@.claim k SET locked_until = '-infinity' WHERE k.consumer = c.name;
        PERFORM @schema@.take_over(c, 0, 2147483647, @schema@.clock());
        FOR l IN SELECT * FROM @schema@.lanes(c.name, c.lanes) LOOP
            SELECT coalesce(min(e.seq) - 1, head) INTO l.floor FROM @schema@.event e
            WHERE NOT @schema@.handed_out(l.seen, l.floor, l.target, l.pos, e.xid, e.seq);
            l.seen := snap;
            l.target := NULL;
            l.pos := 0;
            PERFORM @schema@.put_lane(l);
        END LOOP;
        PERFORM @schema@.rebase_shown(c, snap);
    END LOOP;
    UPDATE @schema@.event e SET xid = pg_current_xact_id();
    INSERT INTO @schema@.meta AS m (name, value)
    VALUES ('rebaselined_from', coalesce((SELECT value FROM @schema@.meta WHERE name = 'system_identifier'), 'unknown')),
           ('rebaselined_at', clock_timestamp()::text),
           ('system_identifier', coalesce(@schema@.home(), 'unknown'))
    ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    RAISE LOG 'outbox in schema % was restored from another cluster: re-baselined', '@schema@';
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@.rebaseline() IS 'makes the outbox right after dump and restore';
