"""Several jobs on one device: needs, what is left, and the policies that choose."""
