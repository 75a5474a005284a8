"""What steps and tests expect: each kind of it, and what it looks at."""
