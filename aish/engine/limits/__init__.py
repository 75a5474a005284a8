"""What a run may use, and what it has used."""
