"""Output of events: the event log with its sinks, results, formats, terminal."""
