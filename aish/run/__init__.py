"""From a pipeline to a finished run: plan, resources, steps, result."""
