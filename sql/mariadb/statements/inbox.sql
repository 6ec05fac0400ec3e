-- inbox.sql: which handler has handled what, for the handlers of this process. The inbox of
-- applications is in emit.sql.

-- is_handled (handler str, key str): a handler takes effect once per key. A locking read: another
-- worker may have recorded it since this transaction began.
SELECT 1 FROM outbox_handled WHERE handler = :handler AND `key` = :key LOCK IN SHARE MODE;
