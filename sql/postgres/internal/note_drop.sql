-- _note_drop records that a dead letter was dropped, and so its event never delivered. The record
-- lasts as long as the event. The trigger calls it for each dead letter that is deleted, whoever
-- does it, unless it had been sent back and is being settled.
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
CREATE OR REPLACE TRIGGER note_drop AFTER DELETE ON @schema@.dead FOR EACH ROW
    WHEN (NOT OLD.retrying) EXECUTE FUNCTION @schema@._note_drop();
