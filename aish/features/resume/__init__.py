"""Runs that are resumed: found, held, and what of them is done."""
