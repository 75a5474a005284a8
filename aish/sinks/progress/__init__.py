"""How far `foreach` steps are, on a terminal and in a log."""
