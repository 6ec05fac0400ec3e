-- lock_meta lets one migration through at a time. Only a role that may change the outbox can take
-- the lock. If there is no outbox yet, CREATE SCHEMA and CREATE TABLE have the same effect.
DO $outbox$
BEGIN
    IF has_table_privilege(to_regclass('@schema@.meta'), 'UPDATE') THEN
        LOCK TABLE @schema@.meta IN SHARE ROW EXCLUSIVE MODE;
    END IF;
END
$outbox$
