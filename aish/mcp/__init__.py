"""The client side of the Model Context Protocol."""
