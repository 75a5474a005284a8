"""Language-model pipelines from a YAML file, run where nobody is there to ask."""

__version__ = "0.1.0"
