"""The calls of a past run or a recording, and rules for them put into a file (S8)."""
