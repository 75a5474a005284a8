"""The items of a step with `foreach`: a stranger's rows, read one after the other (F5, B4)."""
