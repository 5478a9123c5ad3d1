-- What an owner says of itself: its version, its machine, what it drives.
ALTER TABLE @schema.owners ADD COLUMN about BYTEA NOT NULL DEFAULT '';
