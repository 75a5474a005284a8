"""`aish test`: cases with their cassettes, and with real models."""
