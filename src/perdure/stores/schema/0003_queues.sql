-- The queue of the tool that is to run next; NULL: the agent's own. What comes first where there is no room for all.
ALTER TABLE sessions ADD COLUMN queue TEXT;
ALTER TABLE sessions ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
