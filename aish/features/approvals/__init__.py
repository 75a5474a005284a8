"""Tool calls that wait for an approval: the questions of runs, and their answers."""
