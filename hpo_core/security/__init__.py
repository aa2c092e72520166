"""Secrets, private files, and texts of others where people read them."""
