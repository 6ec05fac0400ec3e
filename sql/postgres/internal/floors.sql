-- _floors returns for each consumer the seq up to which it no longer needs events, and what keeps
-- it there (pin): its position, a claim, a parked event, or a lost place.
CREATE OR REPLACE FUNCTION @schema@._floors()
RETURNS TABLE (consumer text, paused boolean, floor bigint, pin text)
LANGUAGE sql STABLE SET jit = off AS $outbox$
    -- The lowest candidate counts. Of equal ones, the pin with the lowest rank is named.
    SELECT DISTINCT ON (f.consumer) f.consumer, f.paused, f.floor, f.pin
    FROM (SELECT c.name AS consumer, c.paused,
                 CASE WHEN l.target IS NULL THEN l.floor ELSE greatest(l.floor, l.pos) END AS floor,
                 'position' AS pin, 2 AS rank
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
          WHERE l.lane >= 0
          UNION ALL
          -- The position is past what is claimed, but a claim may be taken over and read again.
          SELECT c.name, c.paused, greatest(k.floor, k.from_seq), 'claim', 1
          FROM @schema@.consumer c
          JOIN @schema@.claim k ON k.consumer = c.name AND k.lane >= 0
          UNION ALL
          -- Rows of lane are gone: nobody knows where the consumer is, so it may need everything.
          SELECT c.name, c.paused, 0, 'lost place', 0
          FROM @schema@.consumer c
          WHERE (SELECT count(*) FROM @schema@._lanes(c.name, c.lanes)) <= c.lanes
          UNION ALL
          -- A dead letter that was sent back is parked as well, but has a copy of its event. The
          -- first of the others is found by the order of the index: an aggregate would read all.
          SELECT c.name, c.paused, p.seq - 1, 'parked', 0
          FROM @schema@.consumer c,
               LATERAL (SELECT x.seq
                        FROM @schema@.parked x
                        WHERE x.consumer = c.name
                          AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                                          WHERE d.consumer = x.consumer AND d.seq = x.seq)
                        ORDER BY x.seq LIMIT 1) p) f
    ORDER BY f.consumer, f.floor, f.rank
$outbox$;
COMMENT ON FUNCTION @schema@._floors() IS 'what each consumer still needs';
