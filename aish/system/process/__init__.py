"""Child processes, their groups, and the reaper that ends them."""
