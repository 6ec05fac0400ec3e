-- held_here and works_here show what was granted to their reader. Row-level security reads them in
-- every statement, for roles that may have no right on the underlying tables.
--
-- The views read those tables with their owner's rights, but current_user is the reader. As
-- security barriers they never run a function of the reader on a row that the reader may not see.

-- held_here has the tenants that the reader is bound to.
CREATE OR REPLACE VIEW @schema@.held_here WITH (security_barrier = true) AS
SELECT h.tenant
FROM @schema@.held h
WHERE @schema@._inherits(current_user, h.role);
COMMENT ON VIEW @schema@.held_here IS 'which tenants the reader is held to';
GRANT SELECT ON @schema@.held_here TO PUBLIC;

-- works_here has the consumers that the reader may work on, as they were granted: names or
-- patterns.
CREATE OR REPLACE VIEW @schema@.works_here WITH (security_barrier = true) AS
SELECT w.consumer
FROM @schema@.worker w
WHERE @schema@._inherits(current_user, w.role);
COMMENT ON VIEW @schema@.works_here IS 'which consumers the reader may work on';
GRANT SELECT ON @schema@.works_here TO PUBLIC;
