"""Words every room shares: frozen dataclasses and protocols without behaviour."""
