"""schemathesis on the served description: every check it has."""

import os
import re
import subprocess

import pytest

from conftest import KEY


@pytest.mark.parametrize("served", ["server", "chatting"])
def test_schemathesis_is_content(served, request, tmp_path, report):
    server = request.getfixturevalue(served)
    command = [
        "schemathesis", "--config-file", os.path.join(os.path.dirname(__file__), "schemathesis.toml"),
        "run", f"{server.url}/openapi.json", "--url", server.url,
        "--header", f"Authorization: Bearer {KEY}",
        "--checks", "all", "--phases", "examples,coverage,fuzzing,stateful",
        "--max-examples", os.environ.get("NTL_SCHEMATHESIS_EXAMPLES", "60"),
        # Python 3.11 loses count of its recursion where several threads parse Python, as schemathesis does.
        "--workers", "1", "--request-timeout", "60", "--seed", os.environ.get("NTL_SCHEMATHESIS_SEED", "1"),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-20000:]
    print(run.stdout[-2500:])
    report(served=served, cases=re.search(r"\d+ generated, .*", run.stdout).group())
    assert server.metric("ntl_panics_total") == 0
    assert not [labels for (name, labels) in server.metrics() if name == "ntl_requests_total" and ("code", "500") in labels]
