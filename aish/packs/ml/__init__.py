"""The pack `ml`: ask, score and probe the models of the file, and look at their use."""
