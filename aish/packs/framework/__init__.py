"""What every pack is made with: declaring tools, their results, the in-process server."""
