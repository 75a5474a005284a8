"""Open resources of a run."""
