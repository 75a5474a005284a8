"""The pack `py`: Python code by symbol."""
