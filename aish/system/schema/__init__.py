"""JSON Schemas checked in bounded time."""
