-- _mark_adopted marks the rows of adopted tables whose events a consumer has had, in the
-- transaction that settled them. Under _lock_consumer.
--
-- Trouble with a table never keeps an event from being settled. If somebody has the table locked,
-- the next turn tries again. Any other error is kept in table marking, where `doctor` finds it, and
-- the next turn tries again as well.
CREATE OR REPLACE FUNCTION @schema@._mark_adopted(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    m @schema@.marking;
    trouble text;
BEGIN
    FOR m IN SELECT * FROM @schema@.marking x WHERE x.consumer = c.name LOOP
        trouble := NULL;
        BEGIN
            PERFORM @schema@._mark_table(m, c);
        EXCEPTION
            WHEN lock_not_available THEN
                CONTINUE;
            WHEN OTHERS THEN
                trouble := left(SQLERRM, 1000);
        END;
        -- Written only when it changes: error_at is when this error was first met.
        UPDATE @schema@.marking x
        SET error = trouble, error_at = CASE WHEN trouble IS NOT NULL THEN @schema@._clock() END
        WHERE x.id = m.id AND x.error IS DISTINCT FROM trouble;
    END LOOP;
END
$outbox$;
COMMENT ON FUNCTION @schema@._mark_adopted(@schema@.consumer) IS
    'marks the rows whose events a consumer has had';

-- _mark_table marks the rows of one table, up to 10,000 at a time. Rows that somebody has locked
-- are left for the next turn, because nobody is waited for here: most likely that is whoever
-- delivered them before the table was adopted, and will mark them itself.
--
-- Where a predicate decides what a consumer gets, only its receipts tell what it has had. A row
-- whose event the consumer never got is not marked, and is forgotten.
CREATE OR REPLACE FUNCTION @schema@._mark_table(m @schema@.marking, c @schema@.consumer)
RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    last bigint;
    floor bigint;
    had bigint[];
    never bigint[];
    tab text := m.tab::text;
    open text; -- the condition that a row is not marked yet
    same text; -- the condition that row s of the table is the one that adopted_row r stands for
    why text;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class x WHERE x.oid = m.tab) THEN
        PERFORM @schema@._adopt_unmark(m.tab); -- the table was dropped
        RETURN;
    END IF;

    -- Which events has the consumer had, and which will it never get? Beyond last no lane has
    -- handed anything out.
    SELECT max(CASE WHEN l.target IS NULL THEN greatest(l.floor, l.window_end)
                    ELSE greatest(l.floor, l.pos) END)
    INTO last
    FROM @schema@._lanes(c.name, c.lanes) l WHERE l.lane >= 0;
    SELECT f.floor INTO floor FROM @schema@._floors() f WHERE f.consumer = c.name;
    -- A parked event or a dead letter may still be delivered, so its row waits.
    WITH r AS MATERIALIZED (
        SELECT y.seq FROM @schema@.adopted_row y
        WHERE y.marking = m.id AND y.seq <= last
          AND NOT EXISTS (SELECT 1 FROM @schema@.parked p
                          WHERE p.consumer = c.name AND p.seq = y.seq)
          AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                          WHERE d.consumer = c.name AND d.seq = y.seq)
        ORDER BY y.seq LIMIT 10000),
    x AS MATERIALIZED (
        SELECT r.seq,
               CASE WHEN d.state <> 'unknown' THEN d.state
                    WHEN EXISTS (SELECT 1 FROM @schema@.receipt t
                                 WHERE t.consumer = c.name AND t.seq = r.seq) THEN 'delivered'
                    WHEN d.state = 'unknown' OR r.seq <= floor THEN 'skipped' END AS state
        FROM r LEFT JOIN @schema@.delivery d ON d.seq = r.seq AND d.consumer = c.name)
    SELECT array_agg(x.seq) FILTER (WHERE x.state = 'delivered'),
           array_agg(x.seq) FILTER (WHERE x.state IN ('skipped', 'before-start', 'dropped'))
    INTO had, never FROM x;
    DELETE FROM @schema@.adopted_row r WHERE r.marking = m.id AND r.seq = ANY (never);
    IF had IS NULL THEN
        RETURN;
    END IF;

    -- A plain table is marked without those that inherit from it, a partitioned one with its
    -- partitions. The lock keeps the table as it is now from the moment that _adopt_trusts looks.
    IF (SELECT x.relkind = 'r' FROM pg_catalog.pg_class x WHERE x.oid = m.tab) THEN
        tab := 'ONLY ' || tab;
    END IF;
    EXECUTE format('LOCK TABLE %s IN ROW EXCLUSIVE MODE NOWAIT', tab);
    why := @schema@._adopt_trusts(m.tab);
    IF why IS NOT NULL THEN
        RAISE EXCEPTION '%', why USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF row_security_active(m.tab) THEN
        RAISE EXCEPTION 'its row-level security hides rows from role "%"', current_user
            USING ERRCODE = 'insufficient_privilege';
    END IF;

    -- The conditions for the statements below, made from the columns as they are now.
    SELECT format('s.%I', m.col)
           || CASE WHEN @schema@._adopt_stamp(m.tab, m.col) = 'true' THEN ' IS NOT TRUE'
                   ELSE ' IS NULL' END
    INTO open;
    SELECT string_agg(format('s.%I = r.key[%s]::%s', k.name, k.n,
                             format_type(a.atttypid, a.atttypmod)), ' AND ')
    INTO same
    FROM unnest(m.keys) WITH ORDINALITY k (name, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = m.tab AND a.attname = k.name;
    IF same IS NULL OR (SELECT count(*) FROM unnest(m.keys) k
                        JOIN pg_catalog.pg_attribute a ON a.attrelid = m.tab AND a.attname = k)
                       <> cardinality(m.keys) THEN
        RAISE EXCEPTION 'the columns that told its rows apart (%) no longer exist',
            array_to_string(m.keys, ', ')
            USING ERRCODE = 'OB003', HINT = 'adopt it again with the mark';
    END IF;

    -- Rows are locked first, and updated by where they are: an UPDATE cannot skip locked rows.
    EXECUTE format('WITH hit AS MATERIALIZED ('
                   'SELECT s.ctid AS at, s.tableoid AS part FROM %1$s r JOIN %2$s s ON %3$s '
                   'WHERE r.marking = $1 AND r.seq = ANY ($2) AND %4$s '
                   'FOR UPDATE OF s SKIP LOCKED) '
                   'UPDATE %2$s s SET %5$I = %6$s FROM hit '
                   'WHERE s.ctid = hit.at AND s.tableoid = hit.part',
                   '@schema@.adopted_row', tab, same, open, m.col,
                   @schema@._adopt_stamp(m.tab, m.col))
    USING m.id, had;
    -- What is still open was locked by somebody: that is kept for the next turn.
    EXECUTE format('DELETE FROM %s r WHERE r.marking = $1 AND r.seq = ANY ($2) '
                   'AND NOT EXISTS (SELECT 1 FROM %s s WHERE %s AND %s)',
                   '@schema@.adopted_row', tab, same, open)
    USING m.id, had;
END
$outbox$;
COMMENT ON FUNCTION @schema@._mark_table(@schema@.marking, @schema@.consumer) IS
    'marks the rows of one table';
