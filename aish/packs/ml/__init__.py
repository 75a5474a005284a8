"""The pack `ml`: ask, score and probe the models of the file, and report their use."""
