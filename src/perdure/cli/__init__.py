"""The command line: one file per command, everything heavy imported when a command runs."""
