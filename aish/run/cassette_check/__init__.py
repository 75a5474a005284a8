"""Cassettes of a repository, held against the pipelines that play them."""
