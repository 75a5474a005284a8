"""What a run has open."""
