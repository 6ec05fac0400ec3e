-- Adopted tables whose rows are marked as processed once a consumer has had them. A table apart from outbox_adopted: producers lock
-- their row there for as long as they like, and a turn writes here what kept it from marking.
CREATE TABLE IF NOT EXISTS outbox_marking (
    source   VARCHAR(64) NOT NULL PRIMARY KEY,
    consumer VARCHAR(63) NOT NULL,
    mark     VARCHAR(64) NOT NULL,      -- the column that is set; '': marking is about to end
    stamp    VARCHAR(16) NOT NULL,      -- what it is set to, see stamps in src/store/mariadb/adopt_mark.c
    row_key  VARCHAR(64) NOT NULL,      -- the column that tells rows apart
    key_kind VARCHAR(16) NOT NULL,      -- how its values are written
    error    TEXT,                      -- why rows are not marked
    error_at BIGINT,                    -- since when
    KEY consumer (consumer)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Of these tables: which row became which event, until it is marked, or the event is trimmed.
CREATE TABLE IF NOT EXISTS outbox_adopted_row (
    nr     BIGINT UNSIGNED NOT NULL,    -- of the event
    source VARCHAR(64) NOT NULL,
    value  LONGTEXT NOT NULL,           -- of the row's key
    had    TINYINT NOT NULL DEFAULT 0,  -- the consumer has had it, and it is not marked yet
    PRIMARY KEY (nr, source),
    KEY had (source, had, nr)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
