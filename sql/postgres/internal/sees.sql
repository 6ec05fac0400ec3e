-- _name_like: what a name stands for in a grant, for LIKE ANY: mail for itself and mail.anything, mail* for all that begin so.
CREATE OR REPLACE FUNCTION @schema@._name_like(granted text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN $1 LIKE '%*' THEN ARRAY[left(replace($1, '_', E'\\_'), -1) || '%']
            ELSE ARRAY[replace($1, '_', E'\\_'), replace($1, '_', E'\\_') || '.%'] END; -- a name has no other sign that LIKE knows
COMMENT ON FUNCTION @schema@._name_like(text) IS 'what a name stands for in a grant, for LIKE';

-- _sees: names, for LIKE, of the consumers that a role may look at; NULL: all. An operator looks at all, and so does a role that was
-- given the tables by hand; a worker only at its own.
-- It runs with the rights of whoever asks: everybody learns this of himself (works_here), and nothing of others.
CREATE OR REPLACE FUNCTION @schema@._sees(who name) RETURNS text[]
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE -- Every name has its schema.
    names pg_catalog.text[];
BEGIN
    IF who OPERATOR(pg_catalog.<>) current_user THEN
        RAISE EXCEPTION 'permission denied: what others may look at is their own affair' USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF pg_catalog.has_table_privilege(who, '@schema@.idempotency'::pg_catalog.regclass, 'SELECT') THEN -- no worker has that
        RETURN NULL;
    END IF;
    SELECT pg_catalog.array_agg(n) INTO names FROM @schema@.works_here w, pg_catalog.unnest(@schema@._name_like(w.consumer)) AS n;
    RETURN CASE WHEN '%' OPERATOR(pg_catalog.=) ANY (names) THEN NULL ELSE names END;
END
$outbox$;
COMMENT ON FUNCTION @schema@._sees(name) IS 'which consumers a role may look at; NULL: all';
