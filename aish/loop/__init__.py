"""The tool-call loop over an abstract model and abstract tools."""
