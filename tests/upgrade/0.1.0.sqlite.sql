BEGIN TRANSACTION;
CREATE TABLE outbox_claim (
    consumer     TEXT NOT NULL,
    epoch        INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    parked       INTEGER NOT NULL,
    from_seq     INTEGER NOT NULL,
    to_seq       INTEGER NOT NULL,
    owner        TEXT NOT NULL,
    locked_until INTEGER NOT NULL,
    lease        INTEGER NOT NULL,          -- its length: locked_until is never further ahead, whatever the clock did
    PRIMARY KEY (consumer, epoch)
) WITHOUT ROWID;
INSERT INTO "outbox_claim" VALUES('killed',2,0,0,20,40,'vm:5372:71fec8e0',1794872070318,30000);
CREATE TABLE outbox_consumer (
    name       TEXT PRIMARY KEY,
    events     TEXT NOT NULL,      -- type patterns, '' for all
    predicate  TEXT NOT NULL,      -- on the payload, '' for none
    ordering   TEXT NOT NULL CHECK (ordering IN ('none', 'key', 'global')),
    lanes      INTEGER NOT NULL,
    retry      TEXT NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0,
    epoch      INTEGER NOT NULL DEFAULT 0,      -- grows with every claim: the fence
    delivered  INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    report     TEXT,                            -- what its relay last had to say
    report_at  INTEGER
) WITHOUT ROWID;
INSERT INTO "outbox_consumer" VALUES('done','','','key',1,'fast',0,1,62,1794872039951,NULL,NULL);
INSERT INTO "outbox_consumer" VALUES('flaky','','','key',1,'base=1h,cap=1h,attempts=5,jitter=full',0,7,39,1794872040102,NULL,NULL);
INSERT INTO "outbox_consumer" VALUES('global','','','global',1,'fast',0,1,62,1794872040011,NULL,NULL);
INSERT INTO "outbox_consumer" VALUES('killed','','','key',1,'fast',0,2,20,1794872040280,NULL,NULL);
INSERT INTO "outbox_consumer" VALUES('lanes','','','key',4,'fast',0,3,62,1794872039980,NULL,NULL);
INSERT INTO "outbox_consumer" VALUES('paused','','','key',1,'fast',1,1,62,1794872040071,NULL,NULL);
INSERT INTO "outbox_consumer" VALUES('some','order.*','by = "card"','key',1,'fast',0,1,20,1794872040044,NULL,NULL);
CREATE TABLE outbox_dead (
    consumer       TEXT NOT NULL,
    seq            INTEGER NOT NULL,
    id             TEXT NOT NULL,
    type           TEXT NOT NULL,
    aggregate_type TEXT,
    aggregate_id   TEXT,
    version        INTEGER,
    payload        TEXT NOT NULL,
    headers        TEXT,
    tenant         TEXT,
    not_before     INTEGER,
    created_at     INTEGER NOT NULL,
    attempts       INTEGER NOT NULL,
    error          TEXT,
    dead_at        INTEGER NOT NULL,
    retrying       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
INSERT INTO "outbox_dead" VALUES('flaky',5,'01a1e6b5-d9e9-77c2-9ffc-63ccaf2df37a','order.paid','order','4',NULL,'{"n": 4, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913,1,'exit status 65: never',1794872040194,1);
INSERT INTO "outbox_dead" VALUES('flaky',13,'01a1e6b5-d9e9-77c2-9ffc-63d4c899eeb7','order.created','order','4',NULL,'{"n": 12, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913,1,'exit status 65: never',1794872040196,0);
INSERT INTO "outbox_dead" VALUES('flaky',21,'01a1e6b5-d9e9-77c2-9ffc-63dc0a799c7e','stock.low','order','4',NULL,'{"n": 20, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913,1,'exit status 65: never',1794872040197,0);
INSERT INTO "outbox_dead" VALUES('flaky',29,'01a1e6b5-d9e9-77c2-9ffc-63e4d4325228','order.paid','order','4',NULL,'{"n": 28, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913,1,'exit status 65: never',1794872040198,0);
INSERT INTO "outbox_dead" VALUES('flaky',37,'01a1e6b5-d9e9-77c2-9ffc-63ec6b522a6f','order.created','order','4',NULL,'{"n": 36, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913,1,'exit status 65: never',1794872040200,0);
INSERT INTO "outbox_dead" VALUES('flaky',45,'01a1e6b5-d9e9-77c2-9ffc-63f4b6a87e33','stock.low','order','4',NULL,'{"n": 44, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913,1,'exit status 65: never',1794872040201,0);
INSERT INTO "outbox_dead" VALUES('flaky',53,'01a1e6b5-d9e9-77c2-9ffc-63fcfc192319','order.paid','order','4',NULL,'{"n": 52, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913,1,'exit status 65: never',1794872040202,0);
CREATE TABLE outbox_event (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE DEFAULT (lower(
        substr(printf('%012x', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)), 1, 8) || '-' ||
        substr(printf('%012x', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)), 9, 4) || '-7' ||
        substr(hex(randomblob(2)), 2) || '-' || substr('89ab', 1 + (random() & 3), 1) ||
        substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
    -- x'...' is '*[^A- ^?]*': any control character or space. A literal, because it is looked at for every event.
    type           TEXT NOT NULL CHECK (length(type) BETWEEN 1 AND 255 AND
                       type NOT GLOB CAST(x'2a5b012d207f5d2a' AS TEXT)),
    aggregate_type TEXT,
    aggregate_id   TEXT,
    version        INTEGER,
    payload        TEXT NOT NULL DEFAULT 'null' CHECK (json_valid(payload) AND length(payload) <= 67108864),
    headers        TEXT CHECK (headers IS NULL OR json_type(headers) = 'object'),
    tenant         TEXT,
    not_before     INTEGER,
    created_at     INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL))
);
INSERT INTO "outbox_event" VALUES(1,'01a1e6b5-d9e9-77c2-9ffc-63c8eb43bb8c','order.created','order','0',NULL,'{"n": 0, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(2,'01a1e6b5-d9e9-77c2-9ffc-63c96215a971','order.paid','order','1',NULL,'{"n": 1, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(3,'01a1e6b5-d9e9-77c2-9ffc-63ca5284243b','stock.low','order','2',NULL,'{"n": 2, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(4,'01a1e6b5-d9e9-77c2-9ffc-63cb1f1a97d6','order.created','order','3',NULL,'{"n": 3, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(5,'01a1e6b5-d9e9-77c2-9ffc-63ccaf2df37a','order.paid','order','4',NULL,'{"n": 4, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(6,'01a1e6b5-d9e9-77c2-9ffc-63cd8adc67de','stock.low','order','5',NULL,'{"n": 5, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(7,'01a1e6b5-d9e9-77c2-9ffc-63ce7d72ccbd','order.created','order','6',NULL,'{"n": 6, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(8,'01a1e6b5-d9e9-77c2-9ffc-63cff46df995','order.paid','order','7',NULL,'{"n": 7, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(9,'01a1e6b5-d9e9-77c2-9ffc-63d020341b52','stock.low','order','0',NULL,'{"n": 8, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(10,'01a1e6b5-d9e9-77c2-9ffc-63d147c18257','order.created','order','1',NULL,'{"n": 9, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(11,'01a1e6b5-d9e9-77c2-9ffc-63d2a6d08800','order.paid','order','2',NULL,'{"n": 10, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(12,'01a1e6b5-d9e9-77c2-9ffc-63d3ddc1ac12','stock.low','order','3',NULL,'{"n": 11, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(13,'01a1e6b5-d9e9-77c2-9ffc-63d4c899eeb7','order.created','order','4',NULL,'{"n": 12, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(14,'01a1e6b5-d9e9-77c2-9ffc-63d5c01b5034','order.paid','order','5',NULL,'{"n": 13, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(15,'01a1e6b5-d9e9-77c2-9ffc-63d6590d1aac','stock.low','order','6',NULL,'{"n": 14, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(16,'01a1e6b5-d9e9-77c2-9ffc-63d77f6e4a79','order.created','order','7',NULL,'{"n": 15, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(17,'01a1e6b5-d9e9-77c2-9ffc-63d8912e71de','order.paid','order','0',NULL,'{"n": 16, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(18,'01a1e6b5-d9e9-77c2-9ffc-63d9d9479110','stock.low','order','1',NULL,'{"n": 17, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(19,'01a1e6b5-d9e9-77c2-9ffc-63da48cd117b','order.created','order','2',NULL,'{"n": 18, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(20,'01a1e6b5-d9e9-77c2-9ffc-63db3cf02f78','order.paid','order','3',NULL,'{"n": 19, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(21,'01a1e6b5-d9e9-77c2-9ffc-63dc0a799c7e','stock.low','order','4',NULL,'{"n": 20, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(22,'01a1e6b5-d9e9-77c2-9ffc-63dd6a6fd83a','order.created','order','5',NULL,'{"n": 21, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(23,'01a1e6b5-d9e9-77c2-9ffc-63debd715f17','order.paid','order','6',NULL,'{"n": 22, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(24,'01a1e6b5-d9e9-77c2-9ffc-63dfd1c21e40','stock.low','order','7',NULL,'{"n": 23, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(25,'01a1e6b5-d9e9-77c2-9ffc-63e05b123419','order.created','order','0',NULL,'{"n": 24, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(26,'01a1e6b5-d9e9-77c2-9ffc-63e12b475b2c','order.paid','order','1',NULL,'{"n": 25, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(27,'01a1e6b5-d9e9-77c2-9ffc-63e2b944c87d','stock.low','order','2',NULL,'{"n": 26, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(28,'01a1e6b5-d9e9-77c2-9ffc-63e39fcf649d','order.created','order','3',NULL,'{"n": 27, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(29,'01a1e6b5-d9e9-77c2-9ffc-63e4d4325228','order.paid','order','4',NULL,'{"n": 28, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(30,'01a1e6b5-d9e9-77c2-9ffc-63e563a961ef','stock.low','order','5',NULL,'{"n": 29, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(31,'01a1e6b5-d9e9-77c2-9ffc-63e64be8ca05','order.created','order','6',NULL,'{"n": 30, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(32,'01a1e6b5-d9e9-77c2-9ffc-63e74302c45f','order.paid','order','7',NULL,'{"n": 31, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(33,'01a1e6b5-d9e9-77c2-9ffc-63e8bf0e4ccd','stock.low','order','0',NULL,'{"n": 32, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(34,'01a1e6b5-d9e9-77c2-9ffc-63e944f971cb','order.created','order','1',NULL,'{"n": 33, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(35,'01a1e6b5-d9e9-77c2-9ffc-63ea76428bd1','order.paid','order','2',NULL,'{"n": 34, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(36,'01a1e6b5-d9e9-77c2-9ffc-63eb73a1a674','stock.low','order','3',NULL,'{"n": 35, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(37,'01a1e6b5-d9e9-77c2-9ffc-63ec6b522a6f','order.created','order','4',NULL,'{"n": 36, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(38,'01a1e6b5-d9e9-77c2-9ffc-63edfea20b53','order.paid','order','5',NULL,'{"n": 37, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(39,'01a1e6b5-d9e9-77c2-9ffc-63eec509c48e','stock.low','order','6',NULL,'{"n": 38, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(40,'01a1e6b5-d9e9-77c2-9ffc-63ef32c8a73e','order.created','order','7',NULL,'{"n": 39, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(41,'01a1e6b5-d9e9-77c2-9ffc-63f0eaae2793','order.paid','order','0',NULL,'{"n": 40, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(42,'01a1e6b5-d9e9-77c2-9ffc-63f113571991','stock.low','order','1',NULL,'{"n": 41, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(43,'01a1e6b5-d9e9-77c2-9ffc-63f2900378ec','order.created','order','2',NULL,'{"n": 42, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(44,'01a1e6b5-d9e9-77c2-9ffc-63f3cdebdfab','order.paid','order','3',NULL,'{"n": 43, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(45,'01a1e6b5-d9e9-77c2-9ffc-63f4b6a87e33','stock.low','order','4',NULL,'{"n": 44, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(46,'01a1e6b5-d9e9-77c2-9ffc-63f5f45b29f7','order.created','order','5',NULL,'{"n": 45, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(47,'01a1e6b5-d9e9-77c2-9ffc-63f60b24c494','order.paid','order','6',NULL,'{"n": 46, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(48,'01a1e6b5-d9e9-77c2-9ffc-63f7c1276d73','stock.low','order','7',NULL,'{"n": 47, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(49,'01a1e6b5-d9e9-77c2-9ffc-63f84285f908','order.created','order','0',NULL,'{"n": 48, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(50,'01a1e6b5-d9e9-77c2-9ffc-63f9813d4f56','order.paid','order','1',NULL,'{"n": 49, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(51,'01a1e6b5-d9e9-77c2-9ffc-63fac2aa6fdd','stock.low','order','2',NULL,'{"n": 50, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(52,'01a1e6b5-d9e9-77c2-9ffc-63fb2ad686bb','order.created','order','3',NULL,'{"n": 51, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(53,'01a1e6b5-d9e9-77c2-9ffc-63fcfc192319','order.paid','order','4',NULL,'{"n": 52, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(54,'01a1e6b5-d9e9-77c2-9ffc-63fde71e8f31','stock.low','order','5',NULL,'{"n": 53, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(55,'01a1e6b5-d9e9-77c2-9ffc-63feb9ddb1ed','order.created','order','6',NULL,'{"n": 54, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(56,'01a1e6b5-d9e9-77c2-9ffc-63ffb5e3c85c','order.paid','order','7',NULL,'{"n": 55, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(57,'01a1e6b5-d9e9-77c2-9ffc-6400d0de88c6','stock.low','order','0',NULL,'{"n": 56, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(58,'01a1e6b5-d9e9-77c2-9ffc-64012085b558','order.created','order','1',NULL,'{"n": 57, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(59,'01a1e6b5-d9e9-77c2-9ffc-6402aa59616a','order.paid','order','2',NULL,'{"n": 58, "by": "post", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(60,'01a1e6b5-d9e9-77c2-9ffc-6403ce8ffd76','stock.low','order','3',NULL,'{"n": 59, "by": "card", "text": "\u00e4\u2028\n\\"}',NULL,NULL,NULL,1794872039913);
INSERT INTO "outbox_event" VALUES(61,'01a1e6b5-d9f2-7505-aeb3-e877b811d285','order.paid','order','1',7,'{"n": 60}','{"traceparent":"00-1-2-3"}',NULL,NULL,1794872039922);
INSERT INTO "outbox_event" VALUES(62,'01a1e6b5-d9fc-752f-90b4-0c3fa0060f10','order.paid',NULL,NULL,NULL,'{"n": 61}',NULL,NULL,NULL,1794872039932);
INSERT INTO "outbox_event" VALUES(63,'01a1e6b5-da05-74b8-8a66-8483afe010ad','order.paid','order','3',NULL,'{"n": 62}',NULL,NULL,1794875639940,1794872039941);
INSERT INTO "outbox_event" VALUES(64,'01a1e6b5-db4e-70f0-bd3d-16f65587def2','order.paid','order','7',NULL,'{"n": 63, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(65,'01a1e6b5-db4e-70f0-bd3d-16f75f178c2e','order.paid','order','0',NULL,'{"n": 64, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(66,'01a1e6b5-db4e-70f0-bd3d-16f8a776b9a7','order.paid','order','1',NULL,'{"n": 65, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(67,'01a1e6b5-db4e-70f0-bd3d-16f9e650718e','order.paid','order','2',NULL,'{"n": 66, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(68,'01a1e6b5-db4e-70f0-bd3d-16fa0cdda575','order.paid','order','3',NULL,'{"n": 67, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(69,'01a1e6b5-db4e-70f0-bd3d-16fbcd9b5354','order.paid','order','4',NULL,'{"n": 68, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(70,'01a1e6b5-db4e-70f0-bd3d-16fcb7153bd6','order.paid','order','5',NULL,'{"n": 69, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(71,'01a1e6b5-db4e-70f0-bd3d-16fda095d635','order.paid','order','6',NULL,'{"n": 70, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(72,'01a1e6b5-db4e-70f0-bd3d-16fe1bba3474','order.paid','order','7',NULL,'{"n": 71, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(73,'01a1e6b5-db4e-70f0-bd3d-16fff03e3585','order.paid','order','0',NULL,'{"n": 72, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(74,'01a1e6b5-db4e-70f0-bd3d-17004c0caad6','order.paid','order','1',NULL,'{"n": 73, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(75,'01a1e6b5-db4e-70f0-bd3d-170185187d67','order.paid','order','2',NULL,'{"n": 74, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(76,'01a1e6b5-db4e-70f0-bd3d-1702fa287b45','order.paid','order','3',NULL,'{"n": 75, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(77,'01a1e6b5-db4e-70f0-bd3d-17032b85aead','order.paid','order','4',NULL,'{"n": 76, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(78,'01a1e6b5-db4e-70f0-bd3d-17045ba42045','order.paid','order','5',NULL,'{"n": 77, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(79,'01a1e6b5-db4e-70f0-bd3d-1705ebfc581b','order.paid','order','6',NULL,'{"n": 78, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(80,'01a1e6b5-db4e-70f0-bd3d-170676b97c89','order.paid','order','7',NULL,'{"n": 79, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(81,'01a1e6b5-db4e-70f0-bd3d-1707ee1a5077','order.paid','order','0',NULL,'{"n": 80, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(82,'01a1e6b5-db4e-70f0-bd3d-1708603ca204','order.paid','order','1',NULL,'{"n": 81, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(83,'01a1e6b5-db4e-70f0-bd3d-1709e9767551','order.paid','order','2',NULL,'{"n": 82, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(84,'01a1e6b5-db4e-70f0-bd3d-170a394026a8','order.paid','order','3',NULL,'{"n": 83, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(85,'01a1e6b5-db4e-70f0-bd3d-170b6ad11629','order.paid','order','4',NULL,'{"n": 84, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(86,'01a1e6b5-db4e-70f0-bd3d-170c0a24f636','order.paid','order','5',NULL,'{"n": 85, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(87,'01a1e6b5-db4e-70f0-bd3d-170da8b9506b','order.paid','order','6',NULL,'{"n": 86, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(88,'01a1e6b5-db4e-70f0-bd3d-170ee10cd9fa','order.paid','order','7',NULL,'{"n": 87, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(89,'01a1e6b5-db4e-70f0-bd3d-170f47fc0de1','order.paid','order','0',NULL,'{"n": 88, "by": "card"}',NULL,NULL,NULL,1794872040270);
INSERT INTO "outbox_event" VALUES(90,'01a1e6b5-db4e-70f0-bd3d-1710734c99c3','order.paid','order','1',NULL,'{"n": 89, "by": "card"}',NULL,NULL,NULL,1794872040270);
CREATE TABLE outbox_handled (
    handler TEXT NOT NULL,
    key     TEXT NOT NULL,
    hash    INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (handler, key)
) WITHOUT ROWID;
INSERT INTO "outbox_handled" VALUES('ledger','a',1,1700000000000);
CREATE TABLE outbox_idempotency (
    key      TEXT PRIMARY KEY,
    event_id TEXT NOT NULL,
    hash     INTEGER NOT NULL,     -- of what was emitted
    at       INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "outbox_idempotency" VALUES('once','01a1e6b5-d9f2-7505-aeb3-e877b811d285',4681851294513395377,1794872039922);
CREATE TABLE outbox_lane (
    consumer TEXT NOT NULL,
    lane     INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (consumer, lane)
) WITHOUT ROWID;
INSERT INTO "outbox_lane" VALUES('done',0,63);
INSERT INTO "outbox_lane" VALUES('flaky',0,63);
INSERT INTO "outbox_lane" VALUES('global',0,63);
INSERT INTO "outbox_lane" VALUES('killed',0,40);
INSERT INTO "outbox_lane" VALUES('lanes',0,63);
INSERT INTO "outbox_lane" VALUES('lanes',1,63);
INSERT INTO "outbox_lane" VALUES('lanes',2,63);
INSERT INTO "outbox_lane" VALUES('lanes',3,63);
INSERT INTO "outbox_lane" VALUES('paused',0,63);
INSERT INTO "outbox_lane" VALUES('some',0,63);
CREATE TABLE outbox_mark (
    stream   TEXT NOT NULL,
    consumer TEXT NOT NULL,
    hi       INTEGER NOT NULL,
    lo       INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (stream, consumer)
) WITHOUT ROWID;
INSERT INTO "outbox_mark" VALUES('orders','done',5,1,1700000000000);
CREATE TABLE outbox_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "outbox_meta" VALUES('schema_version','1');
CREATE TABLE outbox_parked (
    consumer  TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    key       INTEGER NOT NULL,             -- what order goes by; 0: nothing
    attempts  INTEGER NOT NULL,
    due_at    INTEGER,
    wait      INTEGER NOT NULL DEFAULT 0,   -- what it was told to wait: due_at is never further ahead
    careful   INTEGER NOT NULL DEFAULT 0,   -- was in flight when a worker vanished: alone, attempt counted first
    delayed   INTEGER NOT NULL DEFAULT 0,   -- waits for its not_before
    claim     INTEGER,                      -- epoch of the claim that holds it
    error     TEXT,
    failed_at INTEGER,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
INSERT INTO "outbox_parked" VALUES('done',63,3367385671394433391,0,1794875639940,0,0,1,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',3,-6039702862422559480,1,1794873468328,1428134,0,0,NULL,'exit status 1: no',1794872040194);
INSERT INTO "outbox_parked" VALUES('flaky',4,3367385671394433391,1,1794873508764,1468570,0,0,NULL,'exit status 1: no',1794872040194);
INSERT INTO "outbox_parked" VALUES('flaky',5,7428997973156346021,0,1794872040261,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',11,-6039702862422559480,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',12,3367385671394433391,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',19,-6039702862422559480,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',20,3367385671394433391,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',27,-6039702862422559480,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',28,3367385671394433391,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',35,-6039702862422559480,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',36,3367385671394433391,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',43,-6039702862422559480,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',44,3367385671394433391,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',51,-6039702862422559480,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',52,3367385671394433391,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',59,-6039702862422559480,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',60,3367385671394433391,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('flaky',63,3367385671394433391,0,NULL,0,0,0,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('global',63,1,0,1794875639940,0,0,1,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('lanes',63,3367385671394433391,0,1794875639940,0,0,1,NULL,NULL,NULL);
INSERT INTO "outbox_parked" VALUES('paused',63,3367385671394433391,0,1794875639940,0,0,1,NULL,NULL,NULL);
CREATE TABLE outbox_receipt (
    consumer TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    sink_id  TEXT,
    at       INTEGER NOT NULL,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
INSERT INTO "outbox_receipt" VALUES('done',1,'01a1e6b5-d9e9-77c2-9ffc-63c8eb43bb8c',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',2,'01a1e6b5-d9e9-77c2-9ffc-63c96215a971',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',3,'01a1e6b5-d9e9-77c2-9ffc-63ca5284243b',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',4,'01a1e6b5-d9e9-77c2-9ffc-63cb1f1a97d6',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',5,'01a1e6b5-d9e9-77c2-9ffc-63ccaf2df37a',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',6,'01a1e6b5-d9e9-77c2-9ffc-63cd8adc67de',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',7,'01a1e6b5-d9e9-77c2-9ffc-63ce7d72ccbd',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',8,'01a1e6b5-d9e9-77c2-9ffc-63cff46df995',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',9,'01a1e6b5-d9e9-77c2-9ffc-63d020341b52',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',10,'01a1e6b5-d9e9-77c2-9ffc-63d147c18257',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',11,'01a1e6b5-d9e9-77c2-9ffc-63d2a6d08800',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',12,'01a1e6b5-d9e9-77c2-9ffc-63d3ddc1ac12',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',13,'01a1e6b5-d9e9-77c2-9ffc-63d4c899eeb7',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',14,'01a1e6b5-d9e9-77c2-9ffc-63d5c01b5034',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',15,'01a1e6b5-d9e9-77c2-9ffc-63d6590d1aac',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',16,'01a1e6b5-d9e9-77c2-9ffc-63d77f6e4a79',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',17,'01a1e6b5-d9e9-77c2-9ffc-63d8912e71de',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',18,'01a1e6b5-d9e9-77c2-9ffc-63d9d9479110',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',19,'01a1e6b5-d9e9-77c2-9ffc-63da48cd117b',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',20,'01a1e6b5-d9e9-77c2-9ffc-63db3cf02f78',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',21,'01a1e6b5-d9e9-77c2-9ffc-63dc0a799c7e',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',22,'01a1e6b5-d9e9-77c2-9ffc-63dd6a6fd83a',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',23,'01a1e6b5-d9e9-77c2-9ffc-63debd715f17',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',24,'01a1e6b5-d9e9-77c2-9ffc-63dfd1c21e40',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',25,'01a1e6b5-d9e9-77c2-9ffc-63e05b123419',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',26,'01a1e6b5-d9e9-77c2-9ffc-63e12b475b2c',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',27,'01a1e6b5-d9e9-77c2-9ffc-63e2b944c87d',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',28,'01a1e6b5-d9e9-77c2-9ffc-63e39fcf649d',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',29,'01a1e6b5-d9e9-77c2-9ffc-63e4d4325228',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',30,'01a1e6b5-d9e9-77c2-9ffc-63e563a961ef',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',31,'01a1e6b5-d9e9-77c2-9ffc-63e64be8ca05',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',32,'01a1e6b5-d9e9-77c2-9ffc-63e74302c45f',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',33,'01a1e6b5-d9e9-77c2-9ffc-63e8bf0e4ccd',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',34,'01a1e6b5-d9e9-77c2-9ffc-63e944f971cb',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',35,'01a1e6b5-d9e9-77c2-9ffc-63ea76428bd1',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',36,'01a1e6b5-d9e9-77c2-9ffc-63eb73a1a674',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',37,'01a1e6b5-d9e9-77c2-9ffc-63ec6b522a6f',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',38,'01a1e6b5-d9e9-77c2-9ffc-63edfea20b53',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',39,'01a1e6b5-d9e9-77c2-9ffc-63eec509c48e',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',40,'01a1e6b5-d9e9-77c2-9ffc-63ef32c8a73e',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',41,'01a1e6b5-d9e9-77c2-9ffc-63f0eaae2793',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',42,'01a1e6b5-d9e9-77c2-9ffc-63f113571991',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',43,'01a1e6b5-d9e9-77c2-9ffc-63f2900378ec',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',44,'01a1e6b5-d9e9-77c2-9ffc-63f3cdebdfab',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',45,'01a1e6b5-d9e9-77c2-9ffc-63f4b6a87e33',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',46,'01a1e6b5-d9e9-77c2-9ffc-63f5f45b29f7',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',47,'01a1e6b5-d9e9-77c2-9ffc-63f60b24c494',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',48,'01a1e6b5-d9e9-77c2-9ffc-63f7c1276d73',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',49,'01a1e6b5-d9e9-77c2-9ffc-63f84285f908',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',50,'01a1e6b5-d9e9-77c2-9ffc-63f9813d4f56',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',51,'01a1e6b5-d9e9-77c2-9ffc-63fac2aa6fdd',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',52,'01a1e6b5-d9e9-77c2-9ffc-63fb2ad686bb',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',53,'01a1e6b5-d9e9-77c2-9ffc-63fcfc192319',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',54,'01a1e6b5-d9e9-77c2-9ffc-63fde71e8f31',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',55,'01a1e6b5-d9e9-77c2-9ffc-63feb9ddb1ed',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',56,'01a1e6b5-d9e9-77c2-9ffc-63ffb5e3c85c',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',57,'01a1e6b5-d9e9-77c2-9ffc-6400d0de88c6',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',58,'01a1e6b5-d9e9-77c2-9ffc-64012085b558',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',59,'01a1e6b5-d9e9-77c2-9ffc-6402aa59616a',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',60,'01a1e6b5-d9e9-77c2-9ffc-6403ce8ffd76',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',61,'01a1e6b5-d9f2-7505-aeb3-e877b811d285',NULL,1794872039955);
INSERT INTO "outbox_receipt" VALUES('done',62,'01a1e6b5-d9fc-752f-90b4-0c3fa0060f10',NULL,1794872039955);
CREATE INDEX outbox_idempotency_at ON outbox_idempotency (at);
CREATE INDEX outbox_parked_due ON outbox_parked (consumer, due_at, seq) WHERE claim IS NULL AND due_at IS NOT NULL;
CREATE INDEX outbox_parked_key ON outbox_parked (consumer, key, seq);
CREATE INDEX outbox_parked_claim ON outbox_parked (consumer, claim) WHERE claim IS NOT NULL;
CREATE INDEX outbox_handled_at ON outbox_handled (at);
CREATE INDEX outbox_receipt_at ON outbox_receipt (at);
CREATE VIEW outbox_delivery AS
SELECT e.seq, e.id AS event_id, e.type, c.name AS consumer,
       CASE
           WHEN d.seq IS NOT NULL AND d.retrying = 0 THEN 'expired'
           WHEN p.claim IS NOT NULL THEN 'in-flight'
           WHEN p.attempts > 0 THEN 'failed'
           WHEN p.seq IS NOT NULL THEN 'pending'
           WHEN EXISTS (SELECT 1 FROM outbox_claim k WHERE k.consumer = c.name AND k.parked = 0
                        AND e.seq > k.from_seq AND e.seq <= k.to_seq) THEN 'in-flight'
           WHEN e.seq <= (SELECT min(position) FROM outbox_lane l WHERE l.consumer = c.name) THEN 'delivered'
           ELSE 'pending'
       END AS state,
       coalesce(p.attempts, d.attempts, 0) AS attempts,
       p.due_at,
       coalesce(p.error, d.error) AS error
FROM outbox_event e
CROSS JOIN outbox_consumer c
LEFT JOIN outbox_parked p ON p.consumer = c.name AND p.seq = e.seq
LEFT JOIN outbox_dead d ON d.consumer = c.name AND d.seq = e.seq
WHERE c.events = ''
   OR EXISTS (SELECT 1 FROM json_each('[' || replace(json_quote(c.events), ',', '","') || ']') AS w
              WHERE e.type GLOB trim(w.value));
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('outbox_event',90);
COMMIT;
