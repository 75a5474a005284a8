"""The line editors for terminals; prompt_toolkit is imported here and nowhere else."""
