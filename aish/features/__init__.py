"""What a user would name: each uses the engine, which knows none of them."""
