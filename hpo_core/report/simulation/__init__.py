"""What simulations came to."""
