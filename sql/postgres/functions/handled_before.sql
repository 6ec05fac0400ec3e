-- handled_before: which of the given (handler, key) are in the inbox, as places in the arrays.
CREATE OR REPLACE FUNCTION @schema@.handled_before(handlers text[], keys text[]) RETURNS SETOF bigint
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $outbox$
    SELECT x.n FROM unnest($1, $2) WITH ORDINALITY AS x (handler, key, n)
    WHERE EXISTS (SELECT 1 FROM @schema@.handled h WHERE h.handler = x.handler AND h.key = x.key)
$outbox$;
COMMENT ON FUNCTION @schema@.handled_before(text[], text[]) IS 'which keys the handlers have taken effect for';
