"""Record and replay: exchanges as values, matched, kept in memory and in files (design 4)."""
