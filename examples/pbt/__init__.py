"""Digits with missing pixels, and a learning rate that has to change while the network trains (torch)."""
