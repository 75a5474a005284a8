"""The wire of OpenAI `/responses`."""
