"""Jinja2, sandboxed, strict and bounded."""
