"""Sources of a session's lines: an editor, a pipe, and keys typed ahead."""
