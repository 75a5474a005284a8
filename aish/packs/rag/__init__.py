"""The pack `rag`: passages of local documents for questions (K60-K63)."""
