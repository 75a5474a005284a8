"""Events out: the log that every output hears, results, formats, terminal."""
