-- _note_drop remembers, for as long as the event is kept, that its dead letter was dropped: it was
-- never delivered. A trigger calls it for each dead letter that is deleted and was not sent back.
CREATE OR REPLACE FUNCTION @schema@._note_drop() RETURNS trigger
LANGUAGE plpgsql AS $outbox$
BEGIN
    INSERT INTO @schema@.ended AS x (seq, consumer, state)
    SELECT OLD.seq, OLD.consumer, 'dropped'
    WHERE EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = OLD.seq)
    ON CONFLICT ON CONSTRAINT ended_pkey DO UPDATE SET state = excluded.state;
    RETURN NULL;
END
$outbox$;
COMMENT ON FUNCTION @schema@._note_drop() IS 'remembers that a dead letter was dropped';
