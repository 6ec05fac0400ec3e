-- adopt turns the rows of an existing table into events. The table stays as it is. The rows that
-- are not processed yet are copied in their old order. From then on a trigger makes an event of
-- every new row, in the transaction that inserts it. While adopt runs, writers to the table wait.
--
--     shape     'processed_at' (id, event_type, payload, created_at, processed_at), 'debezium' (id,
--               aggregatetype, aggregateid, type, payload) or 'auto'
--     columns   the names that differ from these, see _adopt_columns
--     existing  'copy' or 'skip'. The default is to copy. For a table that was adopted before there
--               is no default, because nobody can tell which of its rows became events then.
--     mark      a column that is set in a row once `consumer` has had its event, see _mark_adopted;
--               NULL: none, or the one there is
--
-- adopted says whether the table is newly adopted, and copied how many rows were copied. changed
-- says that the table was adopted already, and that its next rows go by other columns or another
-- mark.
CREATE OR REPLACE FUNCTION @schema@.adopt(
    source text, shape text DEFAULT 'auto', columns jsonb DEFAULT '{}', existing text DEFAULT NULL,
    mark text DEFAULT NULL, consumer text DEFAULT NULL,
    OUT adopted boolean, OUT copied bigint, OUT changed boolean)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
    marked boolean := false;
BEGIN
    -- What is read after the lock must be newer than the lock, which takes READ COMMITTED.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'adopt works in READ COMMITTED, not in %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'OB002';
    END IF;

    -- _adopt_source has looked at the table, but before the lock.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tab);
    PERFORM @schema@._adopt_refuse(tab);

    -- Everything is checked before anything is done.
    copied := 0;
    adopted := @schema@._adopted(tab) IS NULL;
    PERFORM @schema@._adopt_decided(tab, NOT adopted, existing);
    PERFORM @schema@._adopt_columns(tab, shape, columns);
    IF mark IS NOT NULL THEN
        marked := @schema@._adopt_mark(tab, mark, consumer);
    END IF;
    IF NOT adopted THEN
        changed := @schema@._adopt_trigger(tab, shape, columns) OR marked;
        RETURN;
    END IF;

    changed := false;
    IF existing IS DISTINCT FROM 'skip' THEN
        copied := @schema@._adopt_copy(tab, shape, columns);
    END IF;
    PERFORM @schema@._adopt_trigger(tab, shape, columns);
    -- This is remembered even after unadopt: see `existing`.
    INSERT INTO @schema@.meta (name, value)
    VALUES (@schema@._adopted_name(tab), @schema@._clock()::text)
    ON CONFLICT DO NOTHING;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.adopt(text, text, jsonb, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.adopt(text, text, jsonb, text, text, text) IS
    'makes events of the rows of an existing table';

-- _adopt_copy makes events of the rows that are in the table, in their order, and returns how many.
-- The caller holds the lock that adopt takes.
CREATE OR REPLACE FUNCTION @schema@._adopt_copy(tab regclass, shape text, columns jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    rows regclass := @schema@._adopt_rows(tab, shape, columns);
    marking int := (SELECT m.id FROM @schema@.marking m WHERE m.tab = _adopt_copy.tab);
    v record;
    copied bigint;
BEGIN
    SELECT * INTO v FROM @schema@._adopt_values(tab, shape, columns, 's');
    PERFORM set_config('outbox.keep_ids', 'on', true); -- see _keeps_id
    IF marking IS NULL THEN
        EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s t ORDER BY t.row_nr',
                       '@schema@.event', v.targets, v.expressions, rows);
        GET DIAGNOSTICS copied = ROW_COUNT;
    ELSE
        -- Rows are to be marked. The ids are chosen here, which tells which row became which event.
        IF v.targets !~ '^id,' THEN
            v.targets := concat('id, ', v.targets);
            v.expressions := concat('@schema@._uuid7(), ', v.expressions);
        END IF;
        EXECUTE format('WITH r (%1$s, row_key) AS MATERIALIZED ('
                       'SELECT %2$s, t.row_key FROM %3$s t ORDER BY t.row_nr), '
                       'e AS (INSERT INTO %4$s (%1$s) SELECT %1$s FROM r RETURNING id, seq), '
                       'n AS (INSERT INTO %5$s (marking, seq, key) '
                       'SELECT $1, e.seq, r.row_key FROM e JOIN r USING (id) '
                       'ON CONFLICT DO NOTHING) '
                       'SELECT count(*) FROM e',
                       v.targets, v.expressions, rows, '@schema@.event', '@schema@.adopted_row')
        INTO copied USING marking;
    END IF;
    PERFORM set_config('outbox.keep_ids', '', true);
    EXECUTE format('DROP MATERIALIZED VIEW %s', rows);
    RETURN copied;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_copy(regclass, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION @schema@._adopt_copy(regclass, text, jsonb) IS
    'makes events of the rows of a table';
