"""The pack `rag`: passages of local documents for questions."""
