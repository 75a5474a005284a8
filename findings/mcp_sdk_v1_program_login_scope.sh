#!/usr/bin/env bash
# @modelcontextprotocol/sdk 1.32.2 (npm, the newest of version 1): a program that logs in by itself
# (`ClientCredentialsProvider`) asks for no scope, although the server's 401 names the one that the
# call needs. The same login in @modelcontextprotocol/client 2.4.0, the package of version 2, asks
# for it.
#
# MCP 2026-07-28, "Scope Selection Strategy": a client should ask for the `scope` of
# `WWW-Authenticate` if it is there. Where the issuer gives a token without scopes, the program is
# logged in and the server refuses its calls; the program has to set the scope itself.
set -euo pipefail
folder=$(mktemp -d)
server=
trap 'kill $server 2> /dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix "$folder" \
    @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 > /dev/null
cat > server.py <<'PY'
"""An MCP server that asks for a login, and its issuer; prints its port, then each token request."""

import http.server
import json


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, code, body, **headers):
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def do_GET(self):
        if self.path.startswith("/.well-known/oauth-protected-resource"):
            issuers = [self.origin]
            self.answer(200, {"resource": f"{self.origin}/mcp", "authorization_servers": issuers})
        elif self.path.startswith("/.well-known/oauth-authorization-server"):
            self.answer(
                200,
                {
                    "issuer": self.origin,
                    "authorization_endpoint": f"{self.origin}/authorize",
                    "token_endpoint": f"{self.origin}/token",
                    "response_types_supported": ["code"],
                    "grant_types_supported": ["client_credentials"],
                    "token_endpoint_auth_methods_supported": ["client_secret_basic"],
                },
            )
        else:
            self.answer(404, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/token":
            print(body, flush=True)
            self.answer(200, {"access_token": "t", "token_type": "Bearer"})
        elif self.headers["Authorization"] is None:
            where = f"{self.origin}/.well-known/oauth-protected-resource/mcp"
            challenge = f'Bearer resource_metadata="{where}", scope="files:read"'
            self.answer(401, {}, WWW_Authenticate=challenge)
        else:
            self.answer(500, {})


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PY
cat > login.mjs <<'JS'
const [, , origin, ...modules] = process.argv;
const found = Object.assign({}, ...(await Promise.all(modules.map((name) => import(name)))));
const authProvider = new found.ClientCredentialsProvider({ clientId: "c", clientSecret: "s" });
const url = new URL(`${origin}/mcp`);
const transport = new found.StreamableHTTPClientTransport(url, { authProvider });
await new found.Client({ name: "probe", version: "1" }).connect(transport).catch(() => {});
process.exit(0);
JS
scope_of() {
    mkfifo "said.$1"
    python3 server.py > "said.$1" &
    server=$!
    exec 3< "said.$1"
    read -r port <&3
    node login.mjs "http://127.0.0.1:$port" "${@:2}" 2> /dev/null
    read -r request <&3
    kill $server
    exec 3<&-
    python3 -c 'import sys, urllib.parse as u; print(u.parse_qs(sys.argv[1]).get("scope"))' "$request"
}
v1=@modelcontextprotocol/sdk/client
first=$(scope_of 1 $v1/index.js $v1/streamableHttp.js $v1/auth-extensions.js)
second=$(scope_of 2 @modelcontextprotocol/client)
printf 'version 1: %s\nversion 2: %s\n' "$first" "$second"
test "$first" = None
test "$second" = "['files:read']"
