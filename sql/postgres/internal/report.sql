-- _report records what a consumer's worker reports, for people to read. While a sink stays down,
-- report_at stays at the first report, so that it shows since when.
CREATE OR REPLACE FUNCTION @schema@._report(consumer text, said text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- A caller that may not write to the tables goes through the workers' door, and comes back
    -- here.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        PERFORM @schema@._worker_report(consumer, said);
        RETURN;
    END IF;
    -- A report may quote a sink, whose answer may be of any length.
    said := left(said, 4000);
    UPDATE @schema@.consumer c
    SET report = said,
        report_at = CASE WHEN c.report LIKE 'sink is down%' AND said LIKE 'sink is down%'
                         THEN c.report_at
                         ELSE @schema@._clock() END
    WHERE c.name = _report.consumer AND c.report IS DISTINCT FROM said;
END
$outbox$;
COMMENT ON FUNCTION @schema@._report(text, text) IS 'records what a consumer''s worker reports';
