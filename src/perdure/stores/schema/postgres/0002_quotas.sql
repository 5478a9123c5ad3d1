-- Quotas that a provider said are used up; `quota` is a digest, from which nobody learns whose. There is a row from the
-- first refusal until the gate is open again for all. When its time is over, as many may try as there are permits: one
-- at first, and two more for each that got through. Who has a permit and does not answer is not waited for longer than
-- until `patience`. The database's clock alone counts.
CREATE TABLE @schema.quotas (
    quota      TEXT        NOT NULL PRIMARY KEY COLLATE "C",
    shut_until TIMESTAMPTZ NOT NULL,
    permits    INTEGER     NOT NULL,
    passed     INTEGER     NOT NULL,
    patience   TIMESTAMPTZ NOT NULL
);

CREATE FUNCTION @schema.shut_quota(p_quota TEXT, p_seconds DOUBLE PRECISION) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_now   TIMESTAMPTZ := clock_timestamp();
    v_until TIMESTAMPTZ;
BEGIN
    INSERT INTO @schema.quotas AS q (quota, shut_until, permits, passed, patience)
    VALUES (p_quota, v_now + make_interval(secs => p_seconds), 1, 0, v_now)
    ON CONFLICT (quota) DO UPDATE
        SET shut_until = greatest(q.shut_until, excluded.shut_until), permits = 1, passed = 0
    RETURNING shut_until INTO v_until;
    PERFORM pg_notify('@schema', '!' || p_quota || ' ' || extract(epoch FROM v_until - v_now));
END $$;

-- The seconds until it is worth asking again; 0, one may try now; NULL, it is open. Nobody believes in a row for ever.
CREATE FUNCTION @schema.enter_quota(p_quota TEXT, p_patience INTERVAL) RETURNS DOUBLE PRECISION LANGUAGE plpgsql AS $$
DECLARE
    v_now TIMESTAMPTZ := clock_timestamp();
    v_row RECORD;
BEGIN
    SELECT shut_until, permits, patience INTO v_row FROM @schema.quotas WHERE quota = p_quota FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF v_row.shut_until > v_now THEN
        RETURN extract(epoch FROM v_row.shut_until - v_now);
    ELSIF v_row.shut_until < v_now - INTERVAL '10 minutes' THEN
        DELETE FROM @schema.quotas WHERE quota = p_quota;
        RETURN NULL;
    ELSIF v_row.permits = 0 AND v_row.patience > v_now THEN
        RETURN extract(epoch FROM v_row.patience - v_now);
    END IF;
    UPDATE @schema.quotas SET permits = greatest(0, permits - 1), patience = v_now + p_patience WHERE quota = p_quota;
    RETURN 0;
END $$;

-- What came of a permit: it got through, or it learned nothing. When as many got through as there are processes, it
-- makes no difference any more whether each of them lets one in, and the gate is open.
CREATE FUNCTION @schema.answer_quota(p_quota TEXT, p_passed BOOLEAN, p_dead_after INTERVAL) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    v_passed INTEGER;
BEGIN
    UPDATE @schema.quotas SET permits = permits + CASE WHEN p_passed THEN 2 ELSE 1 END,
        passed = passed + CASE WHEN p_passed THEN 1 ELSE 0 END
    WHERE quota = p_quota AND shut_until <= clock_timestamp() RETURNING passed INTO v_passed;
    IF NOT FOUND THEN
        RETURN;
    ELSIF p_passed AND v_passed >= (SELECT count(*) FROM @schema.owners WHERE beat_at > now() - p_dead_after) THEN
        DELETE FROM @schema.quotas WHERE quota = p_quota;
        PERFORM pg_notify('@schema', '!' || p_quota || ' open');
    ELSE
        PERFORM pg_notify('@schema', '!' || p_quota || ' 0');
    END IF;
END $$;
