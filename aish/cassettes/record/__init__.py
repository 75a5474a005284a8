"""Recording: what is stored of a run, and what is redacted (secrets)."""
