-- inbox.sql: which handler has handled what, for the handlers of this process. PostgreSQL:
-- handle_all.sql, handled_before.sql. The inbox of applications is in emit.sql.

-- is_handled (handler str, key str): a handler takes effect once per key.
SELECT 1 FROM outbox_handled WHERE handler = :handler AND key = :key;

-- put_handled (handler str, key str, hash int, now int): changes no row if the key was there.
INSERT INTO outbox_handled (handler, key, hash, at) VALUES (:handler, :key, :hash, :now)
    ON CONFLICT DO NOTHING;
