"""Where jobs run: the loop, the executor protocol, the in-process and the virtual executor."""
