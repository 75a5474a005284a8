"""Tools of servers, packs and pipelines as clients see them, and their lists."""
