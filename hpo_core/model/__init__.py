"""Values that import nothing above them: trials, jobs, events, the search space, errors, random streams."""
