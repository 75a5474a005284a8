"""A headless Chromium as tools (K69-K74)."""
