-- Tables of the application whose rows become events, by a trigger. The trigger is made first, and makes nothing of a row until the
-- row here is active. It locks that row until the end of its transaction, to read it: so whoever sets it to active has every row
-- that was inserted before in sight, committed, and every later one is made an event.
CREATE TABLE IF NOT EXISTS outbox_adopted (
    source  VARCHAR(64) NOT NULL PRIMARY KEY,
    mapping TEXT NOT NULL,              -- which column is what, as JSON
    active  TINYINT NOT NULL DEFAULT 0,
    at      BIGINT                      -- when it first became active
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
