"""Going on with a run that was interrupted: what it has done is taken from its journal (B3)."""
