"""The items of a step with `foreach`: untrusted rows, read one after the other."""
