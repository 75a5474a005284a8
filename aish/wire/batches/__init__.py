"""The batch interfaces of vendors: requests that are answered within a day, at a lower price."""
