"""The report of one study."""
