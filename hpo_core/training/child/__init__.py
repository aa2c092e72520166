"""The child process in which an attempt trains, and its life."""
