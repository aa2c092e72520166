"""What a record is read again for: audit, rerun, warm start."""
