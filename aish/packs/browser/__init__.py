"""A headless Chromium as tools."""
