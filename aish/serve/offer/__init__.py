"""What clients see: tools of servers, packs and pipelines, and the lists that they are in."""
