-- The outbox in a PostgreSQL database, version 3: nobody can do more than they were given.
--
-- The tables are locked while this runs, but for what stands before a line `-- @locked@`. Roles need no rights here: init gives
-- every role its part again (internal/rights.sql).

-- ---- roles: nobody but the owner writes to the tables; workers and operators go through functions that check ----

-- Which consumers a role may work on: a name, which stands for its handlers (name.handler), too; one that ends in * stands for all
-- that begin so. Roles go by their names, which are what a dump has; that a role has the part is told by its rights, so one that is
-- made anew under an old name has nothing. See internal/admit.sql.
CREATE TABLE @schema@.worker (
    role     text NOT NULL,
    consumer text NOT NULL,
    PRIMARY KEY (role, consumer)
);
COMMENT ON TABLE @schema@.worker IS 'which consumers a role may work on';

-- Roles that act for one tenant, whatever their connection says.
CREATE TABLE @schema@.held (
    role   text PRIMARY KEY,
    tenant text NOT NULL CHECK (tenant <> '')
);
COMMENT ON TABLE @schema@.held IS 'roles that are held to a tenant';

-- Roles that had a part keep it: a consumer works on all consumers, as it could. What they could write they no longer can.
DO $outbox$
DECLARE
    r record;
    t text;
BEGIN
    FOR r IN SELECT g.rolname, bool_or(c.relname = 'claim') AS works
             FROM pg_catalog.pg_class c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) x
             JOIN pg_catalog.pg_roles g ON g.oid = x.grantee AND g.oid <> c.relowner
             WHERE c.oid = '@schema@.claim'::regclass AND x.privilege_type = 'INSERT'
                OR c.oid = '@schema@.event'::regclass AND x.privilege_type = 'DELETE' GROUP BY g.rolname LOOP
        IF r.works THEN
            INSERT INTO @schema@.worker (role, consumer) VALUES (r.rolname, '*');
            EXECUTE format('GRANT SELECT ON %s TO %I', '@schema@.worker', r.rolname);
            EXECUTE format('REVOKE ALL ON %s FROM %I', '@schema@.handled', r.rolname);
        END IF;
        EXECUTE format('REVOKE UPDATE, DELETE ON %s FROM %I', '@schema@.event', r.rolname);
        EXECUTE format('REVOKE DELETE ON %s FROM %I', '@schema@.idempotency', r.rolname);
        FOREACH t IN ARRAY '{consumer, setting, lane, claim, parked, dead, ended, former_filter, handled, receipt, mark}'::text[] LOOP
            EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %s.%I FROM %I', '@schema@', t, r.rolname);
        END LOOP;
        EXECUTE format('REVOKE USAGE, UPDATE ON SEQUENCE %s FROM %I', '@schema@.epoch', r.rolname);
    END LOOP;
END
$outbox$;
DROP POLICY redrive ON @schema@.dead;
DROP POLICY remove ON @schema@.dead;

-- ---- tenants: a role can be held to one, and each has an inbox of its own ----

ALTER TABLE @schema@.handled ADD COLUMN tenant text NOT NULL DEFAULT '';
ALTER TABLE @schema@.handled DROP CONSTRAINT handled_pkey;
ALTER TABLE @schema@.handled ADD PRIMARY KEY (handler, key, tenant);
ALTER TABLE @schema@.handled ENABLE ROW LEVEL SECURITY;

-- Whom a row is for is asked once for a statement. The functions are put in place by init (internal/acting_for.sql, sees.sql).
CREATE FUNCTION @schema@.acting_for(who name) RETURNS text LANGUAGE sql STABLE AS 'SELECT NULL::text';
CREATE FUNCTION @schema@.sees(who name) RETURNS text[] LANGUAGE sql STABLE AS 'SELECT ''{}''::text[]';
DROP POLICY tenant ON @schema@.event;
DROP POLICY tenant ON @schema@.idempotency;
DROP POLICY tenant ON @schema@.consumer;
CREATE POLICY tenant ON @schema@.event FOR SELECT USING ((SELECT @schema@.acting_for(current_user)) IN ('', tenant));
CREATE POLICY tenant ON @schema@.idempotency FOR SELECT USING ((SELECT @schema@.acting_for(current_user)) IN ('', tenant));
CREATE POLICY given ON @schema@.idempotency FOR UPDATE USING ((SELECT @schema@.acting_for(current_user)) = tenant);
-- An emit asks nothing of a table: who is held to a tenant has no right to choose ids, and is known by that.
CREATE POLICY emit ON @schema@.event FOR INSERT WITH CHECK (
    CASE WHEN has_column_privilege('@schema@.event'::regclass, 'id', 'INSERT')
         THEN coalesce(current_setting('outbox.tenant', true), '') IN ('', tenant)
         ELSE @schema@.acting_for(current_user) = tenant END);
CREATE POLICY emit ON @schema@.idempotency FOR INSERT WITH CHECK (
    CASE WHEN has_column_privilege('@schema@.event'::regclass, 'id', 'INSERT')
         THEN coalesce(current_setting('outbox.tenant', true), '') IN ('', tenant)
         ELSE @schema@.acting_for(current_user) = tenant END);
CREATE POLICY tenant ON @schema@.handled USING ((SELECT @schema@.acting_for(current_user)) IN ('', tenant));
-- Who was given what is for those it was given to, and for operators, who may be held to a tenant themselves.
CREATE FUNCTION @schema@.inherits(who name, role text) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT false';
ALTER TABLE @schema@.worker ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.held ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON @schema@.worker USING (@schema@.inherits(current_user, role)
    OR ((SELECT @schema@.sees(current_user)) IS NULL AND (SELECT @schema@.acting_for(current_user)) = ''));
CREATE POLICY tenant ON @schema@.held USING ((SELECT @schema@.acting_for(current_user)) IN ('', tenant));
-- What there is about a consumer is seen by whoever sees the consumer: the other tables' policies ask this one.
CREATE POLICY tenant ON @schema@.consumer USING ((SELECT @schema@.acting_for(current_user)) IN ('', tenant)
    AND ((SELECT @schema@.sees(current_user)) IS NULL OR name LIKE ANY ((SELECT @schema@.sees(current_user))::text[])));

UPDATE @schema@.meta SET value = '3' WHERE name = 'schema_version';
