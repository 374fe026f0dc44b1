"""schemathesis on the served description: every check it has."""

import os
import subprocess

from conftest import KEY


def test_schemathesis_is_content(server, tmp_path):
    command = [
        "schemathesis", "--config-file", os.path.join(os.path.dirname(__file__), "schemathesis.toml"),
        "run", f"{server.url}/openapi.json", "--url", server.url,
        "--header", f"Authorization: Bearer {KEY}",
        "--checks", "all", "--phases", "examples,coverage,fuzzing,stateful",
        "--max-examples", os.environ.get("NTL_SCHEMATHESIS_EXAMPLES", "60"),
        "--workers", "2", "--request-timeout", "60", "--seed", "1",
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-20000:]
    print(run.stdout[-2500:])
    assert server.metric("ntl_panics_total") == 0
