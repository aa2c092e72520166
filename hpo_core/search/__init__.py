"""Search methods: each is told events and answers what to do next."""
