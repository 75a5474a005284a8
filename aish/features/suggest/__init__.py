"""`aish policy suggest`: rules made of calls that were made."""
