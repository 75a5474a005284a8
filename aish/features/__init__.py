"""User-visible features: each uses the engine, which knows none of them."""
