"""Output of a run for GitHub Actions: the step summary, annotations, masks."""
