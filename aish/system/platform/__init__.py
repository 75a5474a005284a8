"""Calls that only Linux has, each with the form that every Unix has beside it."""
