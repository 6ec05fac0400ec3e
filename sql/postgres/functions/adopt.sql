-- adopt: an existing table of the application's own goes on as it is, and its rows become events. Those that are not
-- processed yet are copied, in their old order, and a trigger makes an event of every new one in its own transaction,
-- whoever inserts it. Writers wait meanwhile. shape: 'processed_at' (id, event_type, payload, created_at, processed_at),
-- 'debezium' (id, aggregatetype, aggregateid, type, payload) or 'auto'; columns that are called otherwise: see adopt_columns.
-- existing: 'copy' or 'skip'; by default copy, but for a table that was adopted before, of which nobody can tell what became
-- events then. A table that is adopted already gets other columns, if these are others, from its next row on. adopted: whether it
-- was not yet; copied: how many rows; changed: whether it was, and has other columns now.
CREATE OR REPLACE FUNCTION @schema@.adopt(source text, shape text DEFAULT 'auto', columns jsonb DEFAULT '{}',
                                          existing text DEFAULT NULL, OUT adopted boolean, OUT copied bigint, OUT changed boolean)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@.adopt_source(source);
    f text;
    v record;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'adopt works in READ COMMITTED, not in %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'OB002';
    END IF;
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tab);
    IF (SELECT c.relkind NOT IN ('r', 'p') FROM pg_catalog.pg_class c WHERE c.oid = tab) IS NOT FALSE THEN -- it was, a moment ago
        RAISE EXCEPTION '% is no table that can be adopted', tab USING ERRCODE = 'OB004';
    END IF;
    copied := 0;
    adopted := @schema@.adopted(tab) IS NULL;
    PERFORM @schema@.adopt_decided(tab, NOT adopted, existing);
    IF NOT adopted THEN
        changed := @schema@.adopt_trigger(tab, shape, columns);
        RETURN;
    END IF;
    changed := false;
    IF existing = 'skip' THEN
        PERFORM @schema@.adopt_columns(tab, shape, columns);
    ELSE
        f := @schema@.adopt_rows(tab, shape, columns);
        SELECT * INTO v FROM @schema@.adopt_values(tab, shape, columns, 's');
        EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s t', '@schema@.event', v.targets, v.expressions, f);
        GET DIAGNOSTICS copied = ROW_COUNT;
        EXECUTE format('DROP FUNCTION %s', f);
    END IF;
    PERFORM @schema@.adopt_trigger(tab, shape, columns);
    INSERT INTO @schema@.meta (name, value) VALUES (@schema@.adopted_name(tab), @schema@.clock()::text) ON CONFLICT DO NOTHING;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.adopt(text, text, jsonb, text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.adopt(text, text, jsonb, text) IS 'makes events of the rows of an existing table';
