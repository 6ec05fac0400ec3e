-- grant.sql: who may do what.

-- parts_of (schema text, user text, host text): whether an account, or a role, which has no host,
-- is a producer, a consumer and an operator. Each part is known by one right that the others lack.
-- Takes the right to read the server's own tables. A name of ours would get the database's before
-- it here, hence CONCAT.
SELECT EXISTS (SELECT 1 FROM mysql.procs_priv
                WHERE Db = :schema AND User = :user AND Host IN ('', :host)
                  AND Routine_name = CONCAT('outbox', '_emit')),
       EXISTS (SELECT 1 FROM mysql.procs_priv
                WHERE Db = :schema AND User = :user AND Host IN ('', :host)
                  AND Routine_name = CONCAT('outbox', '_wait')),
       EXISTS (SELECT 1 FROM mysql.tables_priv
                WHERE Db = :schema AND User = :user AND Host IN ('', :host)
                  AND Table_name = CONCAT('outbox', '_meta')
                  AND FIND_IN_SET('Insert', Table_priv));
