"""What population based training decides: who is fitter, and how parameters change."""
