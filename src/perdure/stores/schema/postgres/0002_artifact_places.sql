-- Large artifacts lie elsewhere: then `place` says where, and there is no data. What nobody needs any more is in `gone`
-- until it has been removed there.
ALTER TABLE @schema.artifacts ALTER COLUMN data DROP NOT NULL, ADD COLUMN place TEXT;
CREATE TABLE @schema.gone (place TEXT NOT NULL PRIMARY KEY);

CREATE FUNCTION @schema.note_gone() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @schema.gone (place) VALUES (OLD.place) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER artifacts_gone AFTER DELETE ON @schema.artifacts
    FOR EACH ROW WHEN (OLD.place IS NOT NULL) EXECUTE FUNCTION @schema.note_gone();
