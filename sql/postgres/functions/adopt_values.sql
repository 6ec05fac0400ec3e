-- adopt_values: how a row `r` (NEW, or a table's alias) of an old table becomes an event: columns of event, expressions for
-- them, which rows are to become one, and in which order. No expression may fail: they run inside the old producer's INSERT.
CREATE OR REPLACE FUNCTION @schema@.adopt_values(source regclass, shape text, columns jsonb, r text, OUT targets text,
                                                 OUT expressions text, OUT unprocessed text, OUT sort text)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    c record;
    v text;
    aggregate_type text;
    t text[] := '{}';
    e text[] := '{}';
BEGIN
    unprocessed := 'true';
    FOR c IN SELECT * FROM @schema@.adopt_columns(source, shape, columns) LOOP
        v := coalesce(quote_literal(c.literal) || '::text', format('%s.%I', r, c.col));
        IF c.field = 'id' THEN
            t := t || '{id, headers}'::text[];
            e := e || format('coalesce(%s.as_uuid(%s::text), %1$s.uuid7())', '@schema@', v)
                   || format('CASE WHEN %s IS NOT NULL AND %s.as_uuid(%1$s::text) IS NULL THEN '
                             'json_build_object(''source_id'', %1$s::text) END', v, '@schema@');
            sort := CASE c.category WHEN 'N' THEN v END;
        ELSIF c.field = 'type' THEN
            t := t || c.field;
            e := e || format('%s.as_type(%s::text)', '@schema@', v);
        ELSIF c.field = 'payload' THEN
            t := t || c.field;
            e := e || format(CASE WHEN c.typ = 'json'::regtype THEN 'coalesce(%1$s, ''null'')'
                                  WHEN c.typ = 'jsonb'::regtype THEN 'coalesce(%1$s::json, ''null'')'
                                  WHEN c.typ = 'bytea'::regtype THEN 'coalesce(%2$s.as_json(%1$s), ''null'')'
                                  ELSE 'coalesce(%2$s.as_json(%1$s::text), ''null'')' END, v, '@schema@');
        ELSIF c.field = 'created_at' THEN -- never ahead of the clock: that would keep it from being trimmed
            t := t || c.field;
            e := e || format('greatest(least(%s::timestamptz, %s.clock()), timestamptz ''epoch'')', v, '@schema@');
            sort := coalesce(sort, format('%s, %s.tableoid, %2$s.ctid', v, r));
        ELSIF c.field = 'processed_at' THEN
            unprocessed := v || CASE c.category WHEN 'B' THEN ' IS NOT TRUE' ELSE ' IS NULL' END;
        ELSIF c.field = 'aggregate_type' THEN
            aggregate_type := v;
        ELSIF c.field = 'aggregate_id' THEN -- comes behind its type, and one without the other is none
            t := t || '{aggregate_type, aggregate_id}'::text[];
            e := e || format('CASE WHEN %s IS NOT NULL THEN %s::text END', v, aggregate_type)
                   || format('CASE WHEN %2$s IS NOT NULL THEN %1$s::text END', v, aggregate_type);
        ELSIF c.field = 'tenant' THEN
            t := t || c.field;
            e := e || (v || '::text');
        END IF;
    END LOOP;
    targets := array_to_string(t, ', ');
    expressions := array_to_string(e, ', ');
    sort := coalesce(sort, format('%s.tableoid, %1$s.ctid', r));
END
$outbox$;
COMMENT ON FUNCTION @schema@.adopt_values(regclass, text, jsonb, text) IS 'how a row becomes an event';
