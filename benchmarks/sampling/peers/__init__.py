"""Other systems, one script each; they run in environments of their own."""
