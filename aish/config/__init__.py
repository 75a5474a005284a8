"""YAML in, a frozen typed `Pipeline` out, all problems at once."""
