"""Checks of compose.yaml that need no Docker: it fits the schema of Compose, its files and flags exist, and its services name each
other."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import jsonschema
import pytest
import yaml

from test_metrics import tool
from test_process import run

ROOT = Path(__file__).parents[2]
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
# The last release of Compose in Python, whose wheel holds the schema.
SCHEMA = "docker-compose==1.29.2"


def compose(model):
    """Returns the file as Compose reads it with this MODEL in the environment: parsed first, then with variables substituted."""

    def value(found):
        kind, text = found.groups()
        return {":-": model or text, ":+": text if model else ""}[kind]

    def interpolated(part):
        match part:
            case dict():
                return {name: interpolated(field) for name, field in part.items()}
            case list():
                return [interpolated(item) for item in part]
            case str():
                text = re.sub(r"\$\{MODEL(:[-+])([^}]*)\}", value, part)
                assert "$" not in text
                return text
        return part

    return interpolated(yaml.safe_load((ROOT / "compose.yaml").read_text()))


@pytest.mark.parametrize("model", ["", "/models/t5"])
def test_compose_yaml_fits_the_schema(tmp_path, model):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, SCHEMA]
    if subprocess.run(command, capture_output=True, timeout=120).returncode:
        pytest.skip("the schema could not be fetched from PyPI")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        schema = json.loads(wheel.read("compose/config/compose_spec.json"))
    services = compose(model)
    jsonschema.validate(services, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**services, "services": {"ntl-server": {"prots": []}}}, schema)


@pytest.mark.parametrize("model", ["", "/models/t5"])
def test_its_files_flags_and_images_are_there(model):
    services = compose(model)["services"]
    mounts = [mount.split(":")[0] for service in services.values() for mount in service["volumes"]]
    assert model in mounts or not model
    for source in mounts:
        assert source == model or source in compose(model)["volumes"] or (source.startswith("./") and (ROOT / source).exists()), source
    command = services["ntl-server"]["command"]
    assert command == ("--model /model" if model else "")
    code, error = run(*command.split(), "--port", "0", "--threads", "0")
    assert code == 2 and "--threads" in error and "--model" not in error, error
    assert services["ntl-server"]["volumes"][0].split(":")[1:] == ["/model", "ro"]
    # The other images are of one version.
    assert all(re.search(r":v?\d+\.\d+\.\d+$", services[name]["image"]) for name in ("prometheus", "grafana"))


def test_its_services_find_each_other():
    services = compose("")["services"]
    port = re.search(r"^EXPOSE (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE).group(1)
    config = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    targets = [target for job in yaml.safe_load(config.read_text())["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    assert targets == [f"ntl-server:{port}"] and f"127.0.0.1:{port}:{port}" in services["ntl-server"]["ports"]
    source = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    host, number = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()
    assert f"127.0.0.1:{number}:{number}" in services[host]["ports"]
    folder = yaml.safe_load((PROVISIONING / "dashboards" / "ntl-server.yml").read_text())["providers"][0]["options"]["path"]
    dashboard = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    mounted = [mount.split(":")[1] for mount in services["grafana"]["volumes"]]
    assert Path(dashboard).parent == Path(folder) and dashboard in mounted and "/etc/grafana/provisioning" in mounted


def test_promtool_accepts_the_configuration_of_prometheus():
    checked = subprocess.run([tool("promtool"), "check", "config", ROOT / "deploy" / "prometheus" / "prometheus.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
