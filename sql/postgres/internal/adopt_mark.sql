-- Marking rows of adopted tables once their consumer has received them.

-- Records that rows of a table are marked in column col once a consumer has received their events.
-- Returns whether that is a change; then the table's trigger has to be recreated.
CREATE OR REPLACE FUNCTION @schema@._adopt_mark(tab regclass, col text, consumer text)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    keys name[] := @schema@._adopt_keys(tab, col, consumer);
BEGIN
    INSERT INTO @schema@.marking AS m (tab, consumer, col, keys)
    VALUES (tab, consumer, col, keys)
    -- A table has one mark. A new one replaces it, together with its error.
    ON CONFLICT ON CONSTRAINT marking_tab_key DO UPDATE
    SET consumer = excluded.consumer, col = excluded.col, keys = excluded.keys, error = NULL,
        error_at = NULL
    WHERE (m.consumer, m.col, m.keys)
          IS DISTINCT FROM (excluded.consumer, excluded.col, excluded.keys);
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM @schema@._marks_kept();
    RETURN true;
END $outbox$;

-- Records that the rows of a table are no longer marked. Returns whether they were; then the
-- table's trigger has to be recreated.
CREATE OR REPLACE FUNCTION @schema@._adopt_unmark(tab regclass) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    DELETE FROM @schema@.adopted_row r USING @schema@.marking m
    WHERE m.tab = _adopt_unmark.tab AND r.marking = m.id;
    DELETE FROM @schema@.marking m WHERE m.tab = _adopt_unmark.tab;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM @schema@._marks_kept();
    RETURN true;
END $outbox$;

-- Updates consumer.marks, which turns check: whether rows of any table are marked for it.
CREATE OR REPLACE FUNCTION @schema@._marks_kept() RETURNS void LANGUAGE sql VOLATILE AS $outbox$
    UPDATE @schema@.consumer c
    SET marks = NOT c.marks
    WHERE c.marks <> EXISTS (SELECT 1 FROM @schema@.marking m WHERE m.consumer = c.name)
$outbox$;

-- The columns that identify a row of a table: its primary key, or a unique index whose columns are
-- never null. Raises an error unless the rows can be marked in column col for this consumer.
CREATE OR REPLACE FUNCTION @schema@._adopt_keys(tab regclass, col text, consumer text)
RETURNS name[] LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    owner name := @schema@._owner();
    why text := @schema@._adopt_trusts(tab);
    keys name[];
BEGIN
    IF coalesce(consumer, '') !~ '^[A-Za-z0-9_.-]{1,63}$' THEN
        RAISE EXCEPTION 'marking rows needs the name of the consumer whose delivery counts; '
                        '"%" is not a valid name', consumer
            USING ERRCODE = 'OB004', HINT = '1 to 63 characters of A-Z a-z 0-9 _ . -';
    END IF;

    IF @schema@._adopt_stamp(tab, col) IS NULL THEN
        RAISE EXCEPTION 'table % has no column % to mark; its columns are %',
            tab, quote_ident(col),
            (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum)
             FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = tab AND a.attnum > 0 AND NOT a.attisdropped)
            USING ERRCODE = 'OB003';
    END IF;

    -- Rows are marked by the turn that settles their events, with the rights of the outbox's owner.
    IF why IS NOT NULL THEN
        RAISE EXCEPTION 'rows of table % cannot be marked: %', tab, why
            USING ERRCODE = 'OB004',
                  HINT = format('give the table to "%s" (ALTER TABLE ... OWNER TO), or let its '
                                'owner act as that role (GRANT); or stop what delivered its rows, '
                                'and adopt it without a mark', owner);
    END IF;
    IF NOT has_table_privilege(owner, tab, 'SELECT')
       OR NOT has_table_privilege(owner, tab, 'UPDATE') THEN
        RAISE EXCEPTION 'rows of table % cannot be marked: the owner of the outbox, "%", '
                        'may not update it', tab, owner
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('GRANT SELECT, UPDATE ON %s TO %I', tab, owner);
    END IF;

    -- The primary key first, then the shortest unique index. Only complete, valid, immediate
    -- indexes on plain columns count, and only their key columns, not the included ones.
    SELECT array_agg(a.attname ORDER BY k.n) INTO keys
    FROM (SELECT i.indkey, i.indnkeyatts
          FROM pg_catalog.pg_index i
          WHERE i.indrelid = tab AND i.indisunique AND i.indimmediate AND i.indisvalid
            AND i.indpred IS NULL AND i.indexprs IS NULL
            AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute x
                            WHERE x.attrelid = tab AND NOT x.attnotnull
                              AND x.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
          ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1) u,
         unnest((u.indkey::int2[])[0:u.indnkeyatts - 1]) WITH ORDINALITY k (attnum, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = tab AND a.attnum = k.attnum;
    IF keys IS NULL THEN
        RAISE EXCEPTION 'rows of table % cannot be marked: it has no primary key to identify them',
            tab USING ERRCODE = 'OB004',
                      HINT = 'add one, or a unique index on columns that are NOT NULL';
    END IF;
    RETURN keys;
END $outbox$;

-- The SQL expression that marks a row in a column; NULL if the table lacks the column. Raises an
-- error if the column's type cannot be used as a mark.
CREATE OR REPLACE FUNCTION @schema@._adopt_stamp(tab regclass, col text) RETURNS text
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    base oid;
    kind "char";
BEGIN
    SELECT @schema@._base_type(a.atttypid), a.attgenerated INTO base, kind
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = tab AND a.attname = col AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN RETURN NULL; END IF;

    -- A generated column (kind) cannot be set.
    IF base = 'boolean'::regtype AND kind = '' THEN RETURN 'true'; END IF;
    IF base = ANY ('{timestamptz, timestamp, date}'::regtype[]) AND kind = '' THEN
        RETURN 'pg_catalog.clock_timestamp()';
    END IF;
    RAISE EXCEPTION 'column % of table % is %, which cannot be marked', quote_ident(col), tab,
        concat(CASE WHEN kind <> '' THEN 'a generated ' END, base::regtype)
        USING ERRCODE = 'OB004',
              HINT = 'it has to be a time (timestamptz, timestamp, date) or a boolean';
END $outbox$;

-- Marks the rows of adopted tables whose events a consumer has received, in the transaction that
-- settled them. Under _lock_consumer.
--
-- An error with a table never prevents an event from being settled: the next turn tries again. It
-- is kept in table marking for `doctor`, unless the table was only locked.
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
        -- Written only when it changes, so that error_at is when this error first occurred.
        UPDATE @schema@.marking x
        SET error = trouble, error_at = CASE WHEN trouble IS NOT NULL THEN @schema@._clock() END
        WHERE x.id = m.id AND x.error IS DISTINCT FROM trouble;
    END LOOP;
END $outbox$;

-- Marks up to 10,000 rows of a table. Rows that a session has locked are left for the next turn:
-- most likely it delivered them before the table was adopted, and will mark them itself. With a
-- predicate, only receipts show which events were received. A row whose event never will be is not
-- marked.
CREATE OR REPLACE FUNCTION @schema@._mark_table(m @schema@.marking, c @schema@.consumer)
RETURNS void LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    last bigint;
    floor bigint;
    had bigint[];
    never bigint[];
    tab text := m.tab::text;
    open text; -- the condition that a row is not marked yet
    same text; -- the condition that adopted_row r stands for row s of the table
    why text;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class x WHERE x.oid = m.tab) THEN
        PERFORM @schema@._adopt_unmark(m.tab); -- the table was dropped
        RETURN;
    END IF;

    -- Which events were received, and which never will be? No lane has handed out one past `last`.
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
    IF had IS NULL THEN RETURN; END IF;

    -- A plain table is marked without the tables that inherit from it, a partitioned one with its
    -- partitions. The lock prevents changes to the table after _adopt_trusts has checked it.
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

    open := format('s.%I IS %s', m.col, CASE @schema@._adopt_stamp(m.tab, m.col)
                                            WHEN 'true' THEN 'NOT TRUE' ELSE 'NULL' END);
    SELECT string_agg(format('s.%I = r.key[%s]::%s', k.name, k.n,
                             format_type(a.atttypid, a.atttypmod)), ' AND ')
    INTO same
    FROM unnest(m.keys) WITH ORDINALITY k (name, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = m.tab AND a.attname = k.name;
    IF same IS NULL OR (SELECT count(*) FROM unnest(m.keys) k
                        JOIN pg_catalog.pg_attribute a ON a.attrelid = m.tab AND a.attname = k)
                       <> cardinality(m.keys) THEN
        RAISE EXCEPTION 'the columns that identified its rows (%) no longer exist',
            array_to_string(m.keys, ', ')
            USING ERRCODE = 'OB003', HINT = 'adopt it again with the mark';
    END IF;

    -- Rows are locked first, and updated by their ctid, because an UPDATE cannot skip locked rows.
    EXECUTE format('WITH hit AS MATERIALIZED ('
                   'SELECT s.ctid AS at, s.tableoid AS part FROM %1$s r JOIN %2$s s ON %3$s '
                   'WHERE r.marking = $1 AND r.seq = ANY ($2) AND %4$s '
                   'FOR UPDATE OF s SKIP LOCKED) '
                   'UPDATE %2$s s SET %5$I = %6$s FROM hit '
                   'WHERE s.ctid = hit.at AND s.tableoid = hit.part',
                   '@schema@.adopted_row', tab, same, open, m.col,
                   @schema@._adopt_stamp(m.tab, m.col))
    USING m.id, had;
    -- Rows that are still unmarked were locked by another session: they are kept for the next turn.
    EXECUTE format('DELETE FROM %s r WHERE r.marking = $1 AND r.seq = ANY ($2) '
                   'AND NOT EXISTS (SELECT 1 FROM %s s WHERE %s AND %s)',
                   '@schema@.adopted_row', tab, same, open)
    USING m.id, had;
END $outbox$;
