"""A project whose server wants a person to log in, and the logins that it keeps."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_process import Done
from e2e_project import Project
from oauth_person import address_printed, visit

COMMAND = "`aish login p.yaml w`"


@dataclass
class LoginProject:
    """A project with a call of a server that wants a login."""

    project: Project
    url: str

    def __post_init__(self) -> None:
        self.project.aish.env["XDG_STATE_HOME"] = str(self.state)
        self.write()

    def write(self, *, tool: str = "echo", arguments: str = "{text: hello}", **oauth: Any) -> None:
        """Write the pipeline; a person logs in unless the settings say something else."""
        login = json.dumps(oauth if "client_secret_env" in oauth else {"login": True, **oauth})
        self.project.pipeline(
            f"""
            mcp:
              servers:
                w: {{url: "{self.url}", oauth: {login}}}
              auto_approve: ["w__*"]
            call: w__{tool}
            with: {arguments}
            """
        )

    def log_in(self, *options: str, browse: Callable[[str], int] = visit) -> Done:
        """Log in as a person whose browser opens the address."""
        with self.project.aish.start("login", "p.yaml", *options) as running:
            browse(address_printed(running))
            return running.finish()

    @property
    def files(self) -> list[Path]:
        """The logins that are kept."""
        return sorted(self.folder.glob("*.json"))

    @property
    def state(self) -> Path:
        return self.project.folder.with_name(f"{self.project.folder.name}-state")

    @property
    def folder(self) -> Path:
        return self.state / "aish" / ".aish" / "logins"

    def kept(self) -> Any:
        return json.loads(self.files[0].read_text("utf-8"))

    def change(self, **fields: Any) -> None:
        """Change the login that is kept, as time does."""
        self.files[0].write_text(json.dumps({**self.kept(), **fields}), "utf-8")
