"""Recording: what is kept of a run, and what never is (secrets)."""
