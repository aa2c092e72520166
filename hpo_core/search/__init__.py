"""Search methods: told facts, asked for the next action; they call nobody."""
