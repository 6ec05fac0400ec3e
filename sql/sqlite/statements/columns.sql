-- columns.sql: fragments of the shared statements, in SQLite's dialect.

-- @events@: events with their seq.
outbox_event e;

-- @numbered@: the table of events with a seq.
outbox_event;

-- @event_of_p@: the event of a row p that has a seq.
outbox_event e ON e.seq = p.seq;

-- @chunk_columns@: an event that is handed out.
@event_columns@;

-- @payload_bytes@: the size of a payload.
length(CAST(e.payload AS BLOB));

-- @by_key@: without this, SQLite would read all parked events for each key.
INDEXED BY outbox_parked_key;

-- @taken@: the parked events that the claim :epoch of :consumer lists. No index finds them by their
-- epoch.
SELECT s.value FROM outbox_claim c, json_each(c.seqs) s
 WHERE c.consumer = :consumer AND c.epoch = :epoch;

-- @and_taken@: limits parked events to those.
 AND seq IN (@taken@);

-- @claimed_parked@: claims and their parked events. With a CROSS JOIN, SQLite reads the claims
-- first, and not all parked events.
outbox_claim c CROSS JOIN json_each(c.seqs) s
CROSS JOIN outbox_parked x ON x.consumer = c.consumer AND x.seq = s.value AND x.claim = c.epoch;

-- @marks@: whether rows of a table are marked once :consumer has received them.
EXISTS (SELECT 1 FROM outbox_adopted WHERE consumer = :consumer AND mark IS NOT NULL);

-- @server_clock@: this machine's clock is used.
0;

-- @identity_value@: distinguishes this outbox from any other that is restored into the same file.
(SELECT value FROM outbox_meta WHERE name = 'identity');

-- @seq@: the number of an event, where other tables have that column as well.
e.seq;
