"""Local commands of a session: typed by the person, or proposed by a model and approved."""
