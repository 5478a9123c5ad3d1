-- Times are microseconds since 1970. Names are text in which a backslash and U+0000 are escaped, so that any text can
-- be kept; the keys are digests of them, so that any length can be indexed.
CREATE TABLE @schema.sessions (
    no         BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid_key    BYTEA   NOT NULL UNIQUE,
    id_key     BYTEA   NOT NULL,
    uid        TEXT    NOT NULL,
    tenant     TEXT    NOT NULL COLLATE "C",
    id         TEXT    NOT NULL,
    head       BIGINT  NOT NULL,
    epoch      BIGINT  NOT NULL DEFAULT 0,
    owner      TEXT    COLLATE "C",
    deleted    BOOLEAN NOT NULL DEFAULT false, -- true: only kept for the forks that read it
    base       BIGINT,                         -- the session whose records up to base_seq are this one's past
    base_seq   BIGINT  NOT NULL DEFAULT 0,
    created_at BIGINT  NOT NULL,
    updated_at BIGINT  NOT NULL,
    agent      TEXT    NOT NULL COLLATE "C",
    status     TEXT    NOT NULL,
    wake       BIGINT,                         -- when there is work: 0 now, NULL never
    pending    INTEGER,                        -- how many decisions are awaited, NULL none
    triggers   INTEGER,                        -- how many triggers it has, NULL none
    watches    INTEGER,                        -- how many of them wait for files, NULL none
    queue      TEXT    COLLATE "C",            -- that of the tool that is to run next, NULL the agent's own
    priority   INTEGER NOT NULL DEFAULT 0,     -- what comes first where there is no room for all
    summary    BYTEA   NOT NULL,
    metadata   BYTEA   NOT NULL
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX sessions_id ON @schema.sessions (id_key) WHERE NOT deleted;
CREATE INDEX sessions_tenant ON @schema.sessions (md5(tenant), no);
CREATE INDEX sessions_wake ON @schema.sessions (wake) WHERE wake IS NOT NULL;
CREATE INDEX sessions_pending ON @schema.sessions (no) WHERE pending IS NOT NULL;
CREATE INDEX sessions_triggers ON @schema.sessions (no) WHERE triggers IS NOT NULL;
CREATE INDEX sessions_watches ON @schema.sessions (no) WHERE watches IS NOT NULL;
CREATE INDEX sessions_owner ON @schema.sessions (md5(owner)) WHERE owner IS NOT NULL;
CREATE INDEX sessions_base ON @schema.sessions (base) WHERE base IS NOT NULL;

CREATE TABLE @schema.records (
    no      BIGINT NOT NULL,
    seq     BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    run     BIGINT NOT NULL,
    digest  BYTEA  NOT NULL,
    payload BYTEA  NOT NULL,
    PRIMARY KEY (no, seq)
);

CREATE TABLE @schema.metadata (
    item BYTEA  NOT NULL, -- the digest of a key and its value
    no   BIGINT NOT NULL,
    PRIMARY KEY (item, no)
);
CREATE INDEX metadata_no ON @schema.metadata (no);

-- Large artifacts lie elsewhere: then `place` says where, and there is no data. What nobody needs any more is in `gone`
-- until it has been removed there.
CREATE TABLE @schema.artifacts (
    no     BIGINT NOT NULL,
    digest BYTEA  NOT NULL,
    data   BYTEA,
    place  TEXT,
    PRIMARY KEY (no, digest)
);
ALTER TABLE @schema.artifacts ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE @schema.gone (place TEXT NOT NULL PRIMARY KEY);

CREATE FUNCTION @schema.note_gone() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @schema.gone (place) VALUES (OLD.place) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER artifacts_gone AFTER DELETE ON @schema.artifacts
    FOR EACH ROW WHEN (OLD.place IS NOT NULL) EXECUTE FUNCTION @schema.note_gone();

CREATE TABLE @schema.drafts (
    id    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    no    BIGINT NOT NULL,
    chunk BYTEA  NOT NULL
);
CREATE INDEX drafts_no ON @schema.drafts (no);

CREATE TABLE @schema.owners (
    owner   TEXT        NOT NULL PRIMARY KEY COLLATE "C",
    beat_at TIMESTAMPTZ NOT NULL,
    about   BYTEA       NOT NULL DEFAULT '' -- what it says of itself: its version, its machine, what it drives
);

-- An append is one round trip and one transaction: the row advances only from the expected head, under the driver's
-- epoch, and its records are written only if it did. The answer is empty, or what stands in the way.
CREATE FUNCTION @schema.append(
    p_uid BYTEA, p_name TEXT, p_expect BIGINT, p_epoch BIGINT,
    p_at BIGINT[], p_run BIGINT[], p_digest BYTEA[], p_payload BYTEA[],
    p_agent TEXT, p_status TEXT, p_wake BIGINT, p_pending INTEGER, p_triggers INTEGER, p_watches INTEGER,
    p_summary BYTEA, p_drops BOOLEAN, p_queue TEXT, p_priority INTEGER
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_no   BIGINT;
    v_head BIGINT := p_expect + cardinality(p_at);
    v_row  RECORD;
BEGIN
    UPDATE @schema.sessions SET head = v_head, updated_at = p_at[cardinality(p_at)], agent = p_agent, status = p_status,
        wake = p_wake, pending = p_pending, triggers = p_triggers, watches = p_watches, summary = p_summary,
        queue = p_queue, priority = p_priority
    WHERE uid_key = p_uid AND head = p_expect AND (p_epoch IS NULL OR epoch = p_epoch) AND NOT deleted
    RETURNING no INTO v_no;
    IF v_no IS NULL THEN
        SELECT head, epoch INTO v_row FROM @schema.sessions WHERE uid_key = p_uid AND NOT deleted;
        IF NOT FOUND THEN
            RETURN 'unknown';
        ELSIF p_epoch IS NOT NULL AND v_row.epoch <> p_epoch THEN
            RETURN 'stale';
        END IF;
        RETURN 'moved ' || v_row.head;
    END IF;
    INSERT INTO @schema.records (no, seq, at, run, digest, payload)
        SELECT v_no, p_expect + r.n, r.at, r.run, r.digest, r.payload
        FROM unnest(p_at, p_run, p_digest, p_payload) WITH ORDINALITY AS r (at, run, digest, payload, n);
    IF p_drops THEN
        DELETE FROM @schema.drafts WHERE no = v_no;
    END IF;
    PERFORM pg_notify('@schema', encode(p_uid, 'hex') || ' ' || v_head);
    RETURN '';
END $$;

CREATE FUNCTION @schema.open_session(
    p_uid BYTEA, p_name TEXT, p_expect BIGINT, p_epoch BIGINT,
    p_at BIGINT[], p_run BIGINT[], p_digest BYTEA[], p_payload BYTEA[],
    p_agent TEXT, p_status TEXT, p_wake BIGINT, p_pending INTEGER, p_triggers INTEGER, p_watches INTEGER,
    p_summary BYTEA,
    p_id_key BYTEA, p_tenant TEXT, p_id TEXT, p_metadata BYTEA, p_items BYTEA[], p_base BYTEA,
    p_queue TEXT, p_priority INTEGER
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_no   BIGINT;
    v_head BIGINT := p_expect + cardinality(p_at);
    v_base RECORD;
    v_base_no BIGINT;
BEGIN
    IF p_base IS NOT NULL THEN
        SELECT no, head INTO v_base FROM @schema.sessions WHERE uid_key = p_base AND NOT deleted FOR SHARE;
        IF NOT FOUND THEN
            RETURN 'no base';
        ELSIF p_expect > v_base.head THEN
            RETURN 'short ' || v_base.head;
        END IF;
        v_base_no := v_base.no;
    END IF;
    IF EXISTS (SELECT FROM @schema.sessions WHERE uid_key = p_uid) THEN
        RETURN 'taken';
    END IF;
    INSERT INTO @schema.sessions (uid_key, id_key, uid, tenant, id, epoch, head, base, base_seq, created_at, updated_at,
        agent, status, wake, pending, triggers, watches, summary, metadata, queue, priority)
    VALUES (p_uid, p_id_key, p_name, p_tenant, p_id, p_epoch, v_head, v_base_no, p_expect, p_at[1],
        p_at[cardinality(p_at)], p_agent, p_status, p_wake, p_pending, p_triggers, p_watches, p_summary,
        p_metadata, p_queue, p_priority)
    ON CONFLICT DO NOTHING RETURNING no INTO v_no;
    IF v_no IS NULL THEN
        IF EXISTS (SELECT FROM @schema.sessions WHERE uid_key = p_uid) THEN
            RETURN 'taken';
        END IF;
        RETURN 'id taken';
    END IF;
    INSERT INTO @schema.metadata (item, no) SELECT DISTINCT i, v_no FROM unnest(p_items) AS i;
    INSERT INTO @schema.records (no, seq, at, run, digest, payload)
        SELECT v_no, p_expect + r.n, r.at, r.run, r.digest, r.payload
        FROM unnest(p_at, p_run, p_digest, p_payload) WITH ORDINALITY AS r (at, run, digest, payload, n);
    PERFORM pg_notify('@schema', encode(p_uid, 'hex') || ' ' || v_head);
    RETURN '';
END $$;

-- A claim where no more than so many sessions of a tenant, or of an agent, may be driven at once: who counts holds a
-- lock, so that of several who count at the same time one after the other does. The tenant's lock is always the first.
CREATE FUNCTION @schema.claim_within(
    p_uid BYTEA, p_owner TEXT, p_dead_after INTERVAL, p_tenants JSONB, p_agents JSONB
) RETURNS TABLE (epoch BIGINT, head BIGINT, last TEXT) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_row    RECORD;
    v_tenant INTEGER;
    v_agent  INTEGER;
    v_living TEXT[];
BEGIN
    SELECT no, tenant, agent INTO v_row FROM @schema.sessions WHERE uid_key = p_uid AND NOT deleted;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_tenant := coalesce(p_tenants ->> v_row.tenant, p_tenants ->> '*')::integer;
    v_agent := coalesce(p_agents ->> v_row.agent, p_agents ->> '*')::integer;
    IF v_tenant IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('@schema tenant ' || v_row.tenant, 0));
    END IF;
    IF v_agent IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('@schema agent ' || v_row.agent, 0));
    END IF;
    SELECT array_agg(md5(owner)) INTO v_living FROM @schema.owners WHERE beat_at > now() - p_dead_after;
    IF v_tenant <= (SELECT count(*) FROM @schema.sessions s WHERE md5(s.owner) = ANY (v_living)
        AND s.tenant = v_row.tenant AND s.no <> v_row.no)
    OR v_agent <= (SELECT count(*) FROM @schema.sessions s WHERE md5(s.owner) = ANY (v_living)
        AND s.agent = v_row.agent AND s.no <> v_row.no) THEN
        RETURN;
    END IF;
    RETURN QUERY
        WITH found AS (
            SELECT no, owner AS before, owner <> p_owner AND NOT EXISTS (
                SELECT FROM @schema.owners o WHERE o.owner = s.owner AND o.beat_at > now() - p_dead_after
            ) AS died FROM @schema.sessions s WHERE no = v_row.no AND NOT deleted FOR UPDATE
        )
        UPDATE @schema.sessions s SET epoch = s.epoch + 1, owner = p_owner FROM found WHERE s.no = found.no
            AND (before IS NULL OR before = p_owner OR died)
        RETURNING s.epoch, s.head, CASE WHEN died THEN before END;
END $$;

-- Forgets a session and what belongs to it alone; what forks of it read is kept until the last of them is gone.
CREATE FUNCTION @schema.delete_session(p_uid BYTEA, p_dead_after INTERVAL) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_no     BIGINT;
    v_owner  TEXT;
    v_needed BIGINT;
    v_base   BIGINT;
BEGIN
    SELECT no, owner INTO v_no, v_owner FROM @schema.sessions WHERE uid_key = p_uid AND NOT deleted FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    ELSIF EXISTS (SELECT FROM @schema.owners WHERE owner = v_owner AND beat_at > now() - p_dead_after) THEN
        RETURN 'driven';
    END IF;
    DELETE FROM @schema.metadata WHERE no = v_no;
    DELETE FROM @schema.drafts WHERE no = v_no;
    UPDATE @schema.sessions SET deleted = true, owner = NULL, wake = NULL, pending = NULL, triggers = NULL,
        watches = NULL WHERE no = v_no;
    LOOP
        SELECT max(base_seq) INTO v_needed FROM @schema.sessions WHERE base = v_no;
        DELETE FROM @schema.records WHERE no = v_no AND seq > coalesce(v_needed, -1);
        EXIT WHEN v_needed IS NOT NULL;
        DELETE FROM @schema.artifacts WHERE no = v_no;
        DELETE FROM @schema.sessions WHERE no = v_no RETURNING base INTO v_base;
        EXIT WHEN v_base IS NULL;
        PERFORM FROM @schema.sessions WHERE no = v_base AND deleted FOR UPDATE;
        EXIT WHEN NOT FOUND;
        v_no := v_base;
    END LOOP;
    RETURN '';
END $$;
