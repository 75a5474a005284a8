"""`aish test`: cases on their cassettes, and on the real models."""
