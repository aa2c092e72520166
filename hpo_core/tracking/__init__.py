"""One-way copies of a study for other eyes. Importing this package imports no tracker."""
