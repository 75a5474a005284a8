"""`aish policy suggest`: derives rules from past calls."""
