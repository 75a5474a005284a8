"""Events out: console, plain log, JSON lines, result object."""
