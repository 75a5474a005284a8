"""`aish init --from FILE`: what other programs have in their files, as a pipeline."""
