-- inbox.sql: which handler has handled what. PostgreSQL: handle_all.sql, handled_before.sql.

-- is_handled (handler str, key str): whether a handler has had this before.
SELECT 1 FROM outbox_handled WHERE handler = :handler AND key = :key;

-- put_handled (handler str, key str, hash int, now int): no row is changed if it was there already.
INSERT INTO outbox_handled (handler, key, hash, at) VALUES (:handler, :key, :hash, :now) ON CONFLICT DO NOTHING;
