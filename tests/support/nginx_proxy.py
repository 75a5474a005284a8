"""nginx in front of a port, with the server that a guide shows."""

import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from docs_pages import ROOT, blocks
from tls_files import TlsFiles

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextmanager
def nginx(guide: str, folder: Path, tls: TlsFiles, port: int, proxy: int) -> Generator[Path]:
    """The server of the guide before `port`, with names and files of a test; yields its log."""
    assert NGINX is not None
    page = ROOT / "docs" / "jobs" / guide
    (server,) = (one.text for one in blocks(page) if one.options.get("file") == "nginx.conf")
    server = re.sub(r"127\.0\.0\.1:80\d\d", f"127.0.0.1:{port}", server)
    server = server.replace("listen 443 ssl", f"listen 127.0.0.1:{proxy} ssl")
    server = re.sub(r"server_name \S+;", "server_name localhost;", server)
    server = re.sub(r"ssl_certificate /\S+;", f"ssl_certificate {tls.certificate};", server)
    server = re.sub(r"ssl_certificate_key /\S+;", f"ssl_certificate_key {tls.key};", server)
    place = folder / "nginx"
    place.mkdir()
    temporary = "".join(
        f"{kind}_temp_path {place}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (place / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {place}/pid; error_log {place}/error.log;\n"
        f"events {{}}\nhttp {{ access_log {place}/access.log; {temporary}\n{server}\n}}\n"
    )
    command = [NGINX, "-p", str(place), "-c", "nginx.conf", "-e", str(place / "error.log")]
    with subprocess.Popen(command) as process:
        try:
            yield place / "access.log"
        finally:
            process.terminate()
