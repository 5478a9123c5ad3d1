-- Times are microseconds since 1970. A session's number is never given twice, so it may be cached.
CREATE TABLE sessions (
    no         INTEGER PRIMARY KEY AUTOINCREMENT,
    uid        TEXT    NOT NULL UNIQUE,
    tenant     TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    head       INTEGER NOT NULL,
    epoch      INTEGER NOT NULL DEFAULT 0,
    owner      TEXT,
    deleted    INTEGER NOT NULL DEFAULT 0, -- 1: only kept for the forks that read it
    base       INTEGER,                    -- the session whose records up to base_seq are this one's past
    base_seq   INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    agent      TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    wake       INTEGER,                    -- when there is work: 0 now, NULL never
    pending    INTEGER,                    -- how many decisions are awaited, NULL none
    summary    BLOB    NOT NULL,
    metadata   BLOB    NOT NULL
);
CREATE UNIQUE INDEX sessions_id ON sessions (tenant, id) WHERE deleted = 0;
CREATE INDEX sessions_tenant ON sessions (tenant);
CREATE INDEX sessions_wake ON sessions (wake) WHERE wake IS NOT NULL;
CREATE INDEX sessions_pending ON sessions (tenant) WHERE pending IS NOT NULL;
CREATE INDEX sessions_owner ON sessions (owner) WHERE owner IS NOT NULL;
CREATE INDEX sessions_base ON sessions (base) WHERE base IS NOT NULL;

-- In order of arrival, whatever the session: a commit of many sessions fills few pages instead of one page for each.
CREATE TABLE records (
    id      INTEGER PRIMARY KEY,
    no      INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    run     INTEGER NOT NULL,
    digest  BLOB    NOT NULL,
    payload BLOB    NOT NULL
);
CREATE UNIQUE INDEX records_seq ON records (no, seq);

CREATE TABLE metadata (
    key   TEXT    NOT NULL,
    value TEXT    NOT NULL,
    no    INTEGER NOT NULL,
    PRIMARY KEY (key, value, no)
) WITHOUT ROWID;

CREATE TABLE artifacts (
    id     INTEGER PRIMARY KEY,
    no     INTEGER NOT NULL,
    digest TEXT    NOT NULL,
    data   BLOB    NOT NULL
);
CREATE UNIQUE INDEX artifacts_digest ON artifacts (no, digest);

CREATE TABLE drafts (
    id    INTEGER PRIMARY KEY,
    no    INTEGER NOT NULL,
    chunk BLOB    NOT NULL
);
CREATE INDEX drafts_no ON drafts (no);
