"""Packing: several jobs at once on a device, by what they need."""
