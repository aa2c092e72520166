"""What the methods of the successive halving family share: rungs, brackets, rankings."""
