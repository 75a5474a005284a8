"""Past runs: find, summarize, merge, delete."""
