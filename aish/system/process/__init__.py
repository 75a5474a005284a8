"""Child processes, process groups, and the reaper that ends them."""
