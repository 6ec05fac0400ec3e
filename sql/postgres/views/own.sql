-- held_here and works_here: what was given to whoever reads them, and nothing of others. Row-level security asks them at every
-- statement, of roles that may have no right on the tables behind them. The views have their owner's rights on those; current_user
-- is the reader all the same, also in a function that runs as its owner. As barriers they run no function of the reader's on a row
-- that is not his.
CREATE OR REPLACE VIEW @schema@.held_here WITH (security_barrier = true) AS
SELECT h.tenant FROM @schema@.held h WHERE @schema@._inherits(current_user, h.role);
COMMENT ON VIEW @schema@.held_here IS 'which tenants the reader is held to';
GRANT SELECT ON @schema@.held_here TO PUBLIC;

CREATE OR REPLACE VIEW @schema@.works_here WITH (security_barrier = true) AS
SELECT w.consumer FROM @schema@.worker w WHERE @schema@._inherits(current_user, w.role);
COMMENT ON VIEW @schema@.works_here IS 'which consumers the reader was given';
GRANT SELECT ON @schema@.works_here TO PUBLIC;
