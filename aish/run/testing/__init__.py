"""`aish test`: cases chosen, run in processes of their own, and judged."""
