"""What steps and tests expect."""
