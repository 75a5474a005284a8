"""The items of a step with `foreach`: untrusted rows, read one after the other (F5, B4)."""
