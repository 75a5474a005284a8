"""Events, errors and the values that every package uses."""
