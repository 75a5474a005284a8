"""`aish apply`: staged calls, executed after review, each of them once (B16)."""
