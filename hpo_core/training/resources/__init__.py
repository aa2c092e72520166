"""What an attempt takes of its machine: measured, reported, and limited to its share."""
