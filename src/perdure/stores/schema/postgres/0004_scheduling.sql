-- The queue of the tool that is to run next; NULL: the agent's own. What comes first where there is no room for all.
ALTER TABLE @schema.sessions ADD COLUMN queue TEXT COLLATE "C", ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;

-- As before, with both.
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
        queue = p_queue, priority = coalesce(p_priority, priority)
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

-- Workers that were started before this migration know of no queues.
CREATE OR REPLACE FUNCTION @schema.append(
    p_uid BYTEA, p_name TEXT, p_expect BIGINT, p_epoch BIGINT,
    p_at BIGINT[], p_run BIGINT[], p_digest BYTEA[], p_payload BYTEA[],
    p_agent TEXT, p_status TEXT, p_wake BIGINT, p_pending INTEGER, p_triggers INTEGER, p_watches INTEGER,
    p_summary BYTEA, p_drops BOOLEAN
) RETURNS TEXT LANGUAGE sql AS $$
    SELECT @schema.append(p_uid, p_name, p_expect, p_epoch, p_at, p_run, p_digest, p_payload, p_agent, p_status,
        p_wake, p_pending, p_triggers, p_watches, p_summary, p_drops, NULL, NULL)
$$;

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
