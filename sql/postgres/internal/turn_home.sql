-- _turn_home asks whether this is still the outbox that the lanes of a consumer know. wrong: it has
-- to be made right first, for this reason. repaired: that was done, and the turn has to begin
-- again. here: the lanes have to note this as their place. moved: they did not know this place, so
-- the head that was read before the lock means nothing to them. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._turn_home(ls @schema@.lane[], OUT wrong text,
                                               OUT repaired boolean, OUT here text,
                                               OUT moved boolean)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    place text;
    trouble record;
BEGIN
    repaired := false;
    moved := false;
    IF current_user <> @schema@._caller() THEN
        -- What a worker says of the cluster could be anything.
        PERFORM set_config('outbox.cluster', '', true);
    END IF;
    place := @schema@._here();
    IF NOT EXISTS (SELECT 1 FROM unnest(ls) x WHERE NOT @schema@._at_home(x.home, place)) THEN
        RETURN;
    END IF;

    PERFORM @schema@._check_whole();
    trouble := @schema@._trouble();
    moved := true;
    wrong := coalesce(trouble.moved, trouble.numbers);
    IF wrong IS NOT NULL THEN
        RETURN;
    ELSIF trouble.sequence IS NULL THEN
        here := place;
    ELSIF random() < 0.02 THEN
        -- Numbers need not grow in the order in which they are taken. The floor stays where it is,
        -- which is slower and just as right. Putting the sequence right makes emits wait, so it is
        -- tried only now and then.
        BEGIN
            PERFORM @schema@._make_right(trouble.sequence);
            repaired := true;
        EXCEPTION WHEN lock_not_available OR sqlstate 'OB006' THEN
            NULL;
        END;
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._turn_home(@schema@.lane[]) IS
    'whether this is still the outbox that a consumer knows';
