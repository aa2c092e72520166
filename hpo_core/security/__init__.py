"""Secrets, private files, and untrusted text."""
