"""Model endpoints: the only package that opens connections to models."""
