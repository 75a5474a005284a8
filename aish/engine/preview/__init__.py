"""A look at a plan before it is run: what it would do, with which tools, at what cost."""
