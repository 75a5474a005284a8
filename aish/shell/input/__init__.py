"""Where the lines of a session come from: an editor, a pipe, and keys typed ahead."""
