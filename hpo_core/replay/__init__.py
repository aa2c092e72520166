"""Audit, rerun and warm start: three uses of a record."""
