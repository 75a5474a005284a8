"""Where things are: our schemas, and the folders the platform has for programs."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def schema_text(name: str) -> str:
    """A published schema, such as `pipeline.schema.json`.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    installed = _PACKAGE / "schemas" / name
    return (installed if installed.exists() else _PACKAGE.parent / "schemas" / name).read_text(
        encoding="utf-8"
    )


def config_folder() -> Path:
    """Where a person's own settings are looked for; it may not exist."""
    from platformdirs import user_config_path

    return user_config_path("aish", appauthor=False)


def state_folder() -> Path:
    """Where what has to outlive a run is kept; it may not exist."""
    from platformdirs import user_state_path

    return user_state_path("aish", appauthor=False)


def cache_folder() -> Path:
    """Where what can be made again is kept; it may not exist."""
    from platformdirs import user_cache_path

    return user_cache_path("aish", appauthor=False)
