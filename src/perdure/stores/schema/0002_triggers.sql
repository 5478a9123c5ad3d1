-- How many triggers a session has, and how many of them wait for files; NULL none.
ALTER TABLE sessions ADD COLUMN triggers INTEGER;
ALTER TABLE sessions ADD COLUMN watches INTEGER;
CREATE INDEX sessions_triggers ON sessions (tenant) WHERE triggers IS NOT NULL;
CREATE INDEX sessions_watches ON sessions (agent) WHERE watches IS NOT NULL;
