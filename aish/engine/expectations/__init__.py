"""Expectations of steps and tests."""
