"""How far the items of `foreach` steps are."""
