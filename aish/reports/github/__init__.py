"""What GitHub Actions reads of a run: the step summary, annotations, masks."""
