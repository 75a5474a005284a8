"""Servers of a file, connected: negotiation, requests, tools, resources."""
