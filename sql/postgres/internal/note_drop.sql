-- _note_drop records that a dead letter was dropped, and so its event never delivered. The record
-- lasts as long as the event. A trigger calls it for each dead letter that is deleted and was not
-- sent back.
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
