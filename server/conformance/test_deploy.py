"""The manifests of deploy/kubernetes: rendered by kubectl, valid against their schemas, consistent with the server and with each
other. Their PromQL runs on a Prometheus server that scrapes two replicas."""

import json
import os
import re
import shutil
import socket
import subprocess
import tomllib
from pathlib import Path

import httpx
import pytest
import yaml

from test_process import run

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = ["cpu", "demo", "gpu", "vllm"]
KUBERNETES_VERSION = "1.32"

# npm packages with the schemas of custom resources, made of their definitions.
SCHEMAS = {
    "keda.sh": "@kubernetes-models/keda@0.4.2",
    "monitoring.coreos.com": "@kubernetes-models/prometheus-operator@6.0.0",
    "gateway.networking.k8s.io": "@kubernetes-models/gateway-api@0.5.1",
}


NAME = {"type": "string", "minLength": 1, "maxLength": 253}
PORT = {"type": "object", "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}}, "required": ["number"]}
LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}}
# The spec of an InferencePool in inference.networking.k8s.io/v1, which no package has: its fields and limits,
# written after its types.
POOL = {
    "type": "object",
    "required": ["selector", "targetPorts", "endpointPickerRef"],
    "properties": {
        "selector": {"type": "object", "required": ["matchLabels"], "properties": {"matchLabels": LABELS}},
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": PORT},
        "endpointPickerRef": {
            "type": "object",
            # A Service, which is the default kind, has to be given with its port.
            "required": ["name", "port"],
            "properties": {
                "group": {"type": "string", "maxLength": 253},
                "kind": {"const": "Service"},
                "name": NAME,
                "port": PORT,
                "failureMode": {"enum": ["FailOpen", "FailClose"]},
            },
        },
    },
}


def closed(schema):
    """The schema, in which every object takes only the fields that are named."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: closed(part) for name, part in schema.items()}
    return schema | {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else schema


def rendered(folder):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(request):
    return rendered(KUBERNETES / "overlays" / request.param)


def is_custom(manifest):
    group = manifest["apiVersion"].rpartition("/")[0]
    return "." in group and not group.endswith((".k8s.io", "k8s.io")) or group.startswith(("gateway.", "inference."))


def of_kind(objects, kind, name="ntl-server"):
    return next((found for found in objects if found["kind"] == kind and found["metadata"]["name"] == name), None)


def test_built_in_kinds_fit_their_schemas(objects):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    checked = [manifest for manifest in objects if not is_custom(manifest)]
    for manifest in checked:
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= {found["kind"] for found in checked}


def test_custom_kinds_fit_their_schemas(objects, tmp_path_factory):
    custom = [found for found in objects if is_custom(found) and found["apiVersion"].partition("/")[0] in SCHEMAS]
    if not custom:
        pytest.skip("this overlay has none")
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "package.json").write_text("{}")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *SCHEMAS.values()]
    if subprocess.run(command, cwd=folder, capture_output=True, timeout=300).returncode:
        pytest.skip("the schemas could not be fetched from npm")
    script = """
        import { readFileSync } from "node:fs";
        for (const [path, object] of JSON.parse(readFileSync(0))) {
          const Kind = (await import(path))[object.kind];
          new Kind(object).validate();
          // The schema must not accept anything.
          let passed = true;
          try { new Kind({ ...object, spec: 5 }).validate(); } catch { passed = false; }
          if (passed) throw new Error(`${path} accepts a number as a spec`);
        }
    """
    pairs = []
    for found in custom:
        group, version = found["apiVersion"].split("/")
        package = SCHEMAS[group].rpartition("@")[0]
        pairs.append((f"{package}/{group}/{version}/{found['kind']}", found))
    checked = subprocess.run(["node", "--input-type=module", "-e", script], cwd=folder, input=json.dumps(pairs), capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_pool_fits_its_schema_which_takes_no_other(objects):
    jsonschema = pytest.importorskip("jsonschema")
    pool = of_kind(objects, "InferencePool")
    if pool is None:
        pytest.skip("this overlay has no pool")
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    valid = jsonschema.Draft202012Validator(closed(POOL)).is_valid
    spec = pool["spec"]
    assert valid(spec)
    picker = spec["endpointPickerRef"]
    for wrong in (
        {"targetPortNumber": 8000},
        {"targetPorts": [{"number": 0}]},
        {"selector": {"app": "ntl"}},
        {"endpointPickerRef": {"name": picker["name"], "portNumber": 9002}},
        {"endpointPickerRef": picker | {"failureMode": "FailOften"}},
    ):
        assert not valid(spec | wrong), wrong


def test_the_times_of_a_replica_fit_together(objects):
    pod = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    flag = lambda name: next(int(arg.rpartition("=")[2]) for arg in container["args"] if arg.startswith(f"--{name}="))
    assert flag("request-timeout") <= flag("drain-timeout"), "a drain would cut off a request"
    pre_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    # Connections and engine threads may take 5 s each to close.
    assert pod["terminationGracePeriodSeconds"] > pre_stop + flag("drain-timeout") + 10
    ready = container["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] <= pre_stop


def test_probes_reach_the_operators_port_of_the_server(objects):
    container = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"--admin-listen=0.0.0.0:{ports['admin']}" in container["args"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == "admin"
    admitted = of_kind(objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"]
    assert {"port": "admin"} in admitted and {"port": "http"} in admitted


def check_downloads(objects, name, downloads):
    """A deployment that downloads has a volume for it that it can write to, and may connect to the hub."""
    pod = of_kind(objects, "Deployment", name)["spec"]["template"]["spec"]
    container = pod["containers"][0]
    egress = of_kind(objects, "NetworkPolicy", name)["spec"].get("egress", [])
    reaches_hub = any({"port": 443} in rule["ports"] for rule in egress)
    assert reaches_hub == downloads
    if not downloads:
        assert not pod.get("volumes")
        return
    home = next(variable["value"] for variable in container["env"] if variable["name"] == "HF_HOME")
    mount = next(mount for mount in container["volumeMounts"] if mount["mountPath"] == home)
    volume = next(volume for volume in pod["volumes"] if volume["name"] == mount["name"])
    assert not mount.get("readOnly")
    if claim := volume.get("persistentVolumeClaim"):
        assert not claim.get("readOnly") and of_kind(objects, "PersistentVolumeClaim", claim["claimName"])
    else:
        assert "emptyDir" in volume


def test_a_model_that_is_downloaded_has_a_place_and_a_way(objects):
    container = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    check_downloads(objects, "ntl-server", any("=hf:" in argument for argument in container["args"]))
    if of_kind(objects, "Deployment", "llm-engine"):
        check_downloads(objects, "llm-engine", True)


def test_replicas_can_share_a_cache(tmp_path):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    above = os.path.relpath(KUBERNETES, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(json.dumps({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{above}/overlays/cpu"],
        "components": [f"{above}/components/shared-cache"],
    }))
    objects = rendered(tmp_path)
    kubernetes_validate.validate(of_kind(objects, "PersistentVolumeClaim", "ntl-cache"), KUBERNETES_VERSION, strict=True)
    pod = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "cache", "persistentVolumeClaim": {"claimName": "ntl-cache"}}]
    # The server is not root, so that the volume has to belong to its group.
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    check_downloads(objects, "ntl-server", True)


def test_the_examples_are_what_the_manifests_refer_to():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    files = sorted((KUBERNETES / "examples").glob("*.yaml"))
    examples = [found for file in files for found in yaml.safe_load_all(file.read_text())]
    for example in examples:
        kubernetes_validate.validate(example, KUBERNETES_VERSION, strict=True)
    objects = rendered(KUBERNETES / "overlays" / "cpu")
    service = of_kind(objects, "Service")
    (rule,) = of_kind(examples, "Ingress")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"]["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    assert {example["metadata"]["namespace"] for example in examples} == {service["metadata"]["namespace"]}
    container = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    sources = [variable["valueFrom"]["secretKeyRef"] for variable in container["env"] if "valueFrom" in variable]
    assert len(sources) == 2
    for source in sources:
        assert source["key"] in of_kind(examples, "Secret", source["name"])["stringData"] and source["optional"]


def test_the_driver_of_a_gpu_can_keep_the_kernels_that_it_compiles(objects):
    container = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    if not any(arg.startswith("--device=cuda") for arg in container["args"]):
        pytest.skip("this overlay uses no GPU")
    dockerfile = (KUBERNETES.parents[1] / "Dockerfile").read_text()
    cache = re.search(r"^ENV CUDA_CACHE_PATH=(\S+)$", dockerfile, re.MULTILINE)[1]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] and not mounts[cache].get("readOnly")


def test_a_pod_is_what_the_others_select(objects):
    deployment = of_kind(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        of_kind(objects, "Service")["spec"]["selector"],
        of_kind(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for kind in ("PodMonitor", "InferencePool"):
        if found := of_kind(objects, kind):
            selectors.append(found["spec"]["selector"]["matchLabels"])
    assert all(selector and selector.items() <= labels for selector in selectors)
    if pool := of_kind(objects, "InferencePool"):
        picker = pool["spec"]["endpointPickerRef"]
        ports = of_kind(objects, "Service", picker["name"])["spec"]["ports"]
        assert picker["port"]["number"] in [port["port"] for port in ports]
        assert {"ntl"} == {value for label, value in labels if label.endswith("engine-type")}


def test_the_server_accepts_its_arguments_and_has_the_probed_routes(objects, server):
    container = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    arguments = [argument for argument in container["args"] if argument != "--device=cuda"]
    # The server checks all flags before it loads a checkpoint or connects to an engine; --threads=0 is the
    # only error.
    code, error = run(*arguments, "--port=0", "--threads=0")
    assert code == 2 and "--threads" in error and "--model" not in error, error
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert httpx.get(server.url + container[probe]["httpGet"]["path"]).status_code == 200


def promql(objects):
    triggers = of_kind(objects, "ScaledObject")
    return [trigger["metadata"]["query"] for trigger in triggers["spec"]["triggers"]] if triggers else []


def test_the_endpoint_picker_reads_gauges_of_the_server(objects, server):
    config = next((found for found in objects if found["kind"] == "ConfigMap"), None)
    if config is None:
        pytest.skip("this overlay has no endpoint picker")
    plugins = yaml.safe_load(config["data"]["config.yaml"])["plugins"]
    (engine,) = next(plugin for plugin in plugins if plugin["type"] == "core-metrics-extractor")["parameters"]["engineConfigs"]
    text = httpx.get(f"{server.url}/metrics").text
    for spec in ("queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"):
        assert f"# TYPE {engine[spec]} gauge" in text
        # It reads the first series: with one model there is only that.
        assert len(re.findall(rf"^{engine[spec]}\{{", text, re.MULTILINE)) == 1


def test_every_query_has_one_answer_over_two_replicas(objects, start, tmp_path):
    queries = promql(objects)
    if not queries:
        pytest.skip("this overlay asks Prometheus nothing")
    for tool in ("prometheus", "promtool"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed (apt-get install prometheus)")
    replicas = [start(), start()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The operator names the job of a PodMonitor after its namespace and its name.
    targets = [replica.address for replica in replicas]
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [
        {"job_name": "ntl/ntl-server", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
    ]}))
    url = f"http://127.0.0.1:{port}"
    flags = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with open(tmp_path / "log", "w") as log:
        prometheus = subprocess.Popen(["prometheus", *flags], stderr=log, stdout=log)
    try:
        def ask(query):
            asked = subprocess.run(["promtool", "query", "instant", url, query], capture_output=True, text=True)
            return asked.stdout.strip().splitlines() if asked.returncode == 0 else []

        replicas[0].wait(lambda: len(ask("ntl_engine_up == 1")) == 2, seconds=60)
        for query in queries:
            answer = ask(query)
            assert len(answer) == 1 and re.match(r"\{\} => 0 @", answer[0]), (query, answer)
            assert ask(query.replace("ntl_", "no_")) == []
    finally:
        prometheus.terminate()
        prometheus.wait()


def test_the_image_of_the_manifests_has_the_version_of_the_workspace(objects):
    cargo = tomllib.loads((KUBERNETES.parents[1] / "Cargo.toml").read_text())
    image = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.rpartition(":")[2].removesuffix("-cuda") == cargo["workspace"]["package"]["version"]
