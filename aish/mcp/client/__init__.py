"""Connected servers of a file: negotiation, requests, tools, resources."""
