"""Handwritten digits again, shifted about, with a learning rate that has to change while it trains."""
