"""What a person at a terminal sees of a run or a session."""
