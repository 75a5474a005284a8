"""Tools of servers, packs and pipelines as clients see them, and the lists of them."""
