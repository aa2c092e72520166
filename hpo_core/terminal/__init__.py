"""Words, tables and streams of a terminal, for all commands."""
