"""Record and replay: exchanges as values, matched, stored in memory and in files."""
