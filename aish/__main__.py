"""The entry point: `aish` and `python -m aish`."""

import sys

from aish import __version__


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        # Asked by scripts all the time, so it does not pay for the parser's import.
        sys.stdout.write(f"aish {__version__}\n")
        return
    from aish.cli.main import run_command_line

    sys.exit(run_command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()
