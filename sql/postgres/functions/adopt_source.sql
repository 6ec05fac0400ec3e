-- adopt_source: the table somebody means: as SQL writes it (shop."Outbox"), or just as it is called.
CREATE OR REPLACE FUNCTION @schema@.adopt_source(source text) RETURNS regclass
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    found regclass;
BEGIN
    BEGIN
        found := to_regclass(source);
    EXCEPTION WHEN invalid_name OR syntax_error OR feature_not_supported THEN
        NULL;
    END;
    found := coalesce(found, to_regclass(quote_ident(source)));
    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no table %', source
            USING ERRCODE = 'OB003', HINT = 'write it as SQL does, with its schema: shop."Outbox"';
    END IF;
    IF found = '@schema@.event'::regclass
       OR (SELECT c.relkind NOT IN ('r', 'p') FROM pg_catalog.pg_class c WHERE c.oid = found) THEN
        RAISE EXCEPTION '% is no table that can be adopted', found USING ERRCODE = 'OB004';
    END IF;
    RETURN found;
END
$outbox$;
COMMENT ON FUNCTION @schema@.adopt_source(text) IS 'the table to adopt';
