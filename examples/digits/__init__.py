"""Handwritten digits (8 x 8 pixels, scikit-learn) with a small torch network."""
