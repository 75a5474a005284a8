"""The commands of a session, one file each; `catalogue` lists them."""
