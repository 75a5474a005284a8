"""Secrets and masking."""
