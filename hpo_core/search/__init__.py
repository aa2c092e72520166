"""Search methods: they take note of events and answer what to do next; they call nobody."""
