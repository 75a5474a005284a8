"""The pack `py`: Python code by symbol (K28-K38)."""
