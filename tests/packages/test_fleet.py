"""What a fleet is started with: the files of `packaging/fleet` against their schemas, and docs/fleet.md, done as it is written."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLEET = ROOT / "packaging/fleet"
KUBERNETES = FLEET / "kubernetes"
# Definitions of kinds that Kubernetes itself does not have.
DEFINITIONS = pathlib.Path(__file__).parent / "definitions"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
sys.path.insert(0, str(ROOT / "tests"))

from server import BINARY, Server, free_port  # noqa: E402


def documents(*paths):
    return [one for path in paths for one in yaml.safe_load_all(path.read_text()) if one]


def of_kind(kind, paths=tuple(sorted(KUBERNETES.rglob("*.yaml")))):
    return {one["metadata"]["name"]: one for one in documents(*paths) if one["kind"] == kind}


def test_compose_is_what_the_specification_says():
    run = subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", FLEET / "compose.yaml"],
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_compose_names_what_it_has_and_gives_each_node_its_time():
    compose = yaml.safe_load((FLEET / "compose.yaml").read_text())
    nodes = {name: service for name, service in compose["services"].items() if name.startswith("kvik-")}
    asked = [f"http://{name}:8080" for name in nodes]
    assert len(nodes) == 4 and compose["services"]["router"]["command"][-4:] == asked
    for name, node in nodes.items():
        assert node["volumes"] == [f"{name}:/data"] and name in compose["volumes"]
        assert {secret["source"] for secret in node["secrets"]} == set(compose["secrets"])
        ends_in = int(node["stop_grace_period"].removesuffix("s"))
        assert ends_in >= node["environment"]["KVIK_DRAIN"] + node["environment"]["KVIK_GRACE"] + 5
        known_flags({key.removeprefix("KVIK_").lower().replace("_", "-") for key in node["environment"]})


def known_flags(names):
    """Settings are flags of `kvik serve`."""
    told = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    assert names <= set(re.findall(r"--([a-z-]+)", told)), names


@pytest.mark.parametrize("path", sorted(KUBERNETES.rglob("*.yaml")), ids=lambda path: path.name)
def test_manifests_are_what_kubernetes_reads(path):
    for document in documents(path):
        group = document["apiVersion"].split("/")[0]
        definition = DEFINITIONS / f"{document['kind']}.yaml"
        if definition.exists():
            versions = {one["name"]: one for one in yaml.safe_load(definition.read_text())["spec"]["versions"]}
            schema = versions[document["apiVersion"].split("/")[1]]["schema"]["openAPIV3Schema"]
            Draft202012Validator(closed(schema)).validate(document)
        elif group not in ("gateway.networking.k8s.io", "kustomize.config.k8s.io"):
            for version in ("1.32", "1.37"):
                kubernetes_validate.validate(document, version, strict=True)


def closed(schema):
    """Fields that a definition does not have are wrong, as `kubectl apply` says."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def test_pods_have_the_time_that_their_settings_give_and_only_routers_read_events():
    config = of_kind("ConfigMap")["kvik"]["data"]["config.toml"]
    settings = dict(re.findall(r"^([a-z-]+) = (.+)$", config, re.M))
    known_flags(set(settings))
    pod = of_kind("StatefulSet")["kvik"]["spec"]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= int(settings["drain"]) + int(settings["grace"]) + 5
    for name, policy in of_kind("NetworkPolicy").items():
        for rule in policy["spec"]["ingress"]:
            if {port["port"] for port in rule["ports"]} & {"kv-events", "kv-replay"}:
                assert rule["from"] in ([{"podSelector": {"matchLabels": {"app": app}}}] for app in ("kvik-router", "kvik-epp")), name
    used = {one for one in documents(KUBERNETES / "kustomization.yaml")[0]["resources"]}
    assert used == {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}


def test_what_the_picker_reads_is_in_the_metrics_of_a_node():
    """By a parser of Prometheus's text format, as llm-d's picker has one; it has none of OpenMetrics."""
    picker = yaml.safe_load(of_kind("ConfigMap")["kvik-epp"]["data"]["picker.yaml"])
    extractor = next(one for one in picker["plugins"] if one["type"] == "core-metrics-extractor")
    engine, = extractor["parameters"]["engineConfigs"]
    label = of_kind("StatefulSet")["kvik"]["spec"]["template"]["metadata"]["labels"]["llm-d.ai/engine-type"]
    assert engine.pop("name") == label == extractor["parameters"]["defaultEngine"]
    with Server("--cache-ram", "64MiB", "--threads", "1") as node:
        families = text_string_to_metric_families(node.get("/metrics").text)
        samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert set(engine.values()) <= set(samples), set(engine.values()) - set(samples)
    assert samples[engine["cacheBlockSizeSpec"]] == 16 and samples[engine["kvUsageSpec"]] == 0


def test_units_are_valid_and_as_closed_as_that_of_one_node(installed, tmp_path):
    for path in [*(FLEET / "systemd").glob("kvik*"), ROOT / "packaging/systemd/kvik.service"]:
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/kvik-router/bin/python", "/usr/bin/python3"))
    env = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    names = ["kvik@8001.service", "kvik-router.service", "kvik-fleet.target"]
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, env=env)
    ours = [line for line in verified.stderr.splitlines() if "kvik" in line]
    assert (verified.returncode, ours) == (0, []), verified.stderr
    alone, one_of_four = (hardening(tmp_path / name) for name in ("kvik.service", "kvik@.service"))
    assert alone == one_of_four and len(alone) > 25


def hardening(unit):
    lines = unit.read_text().split("# It writes to the two directories", 1)[1].split("[Install]")[0].splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_the_page_takes_one_from_one_node_to_four(tmp_path):
    page = (ROOT / "docs/fleet.md").read_text()
    section = re.search(r"^## In one shell\n(.*?)^## ", page, re.M | re.S)[1]
    script = "\n".join(BLOCK.findall(section))
    for port in sorted(set(re.findall(r"\b(?:800\d|6379)\b", script))):
        script = re.sub(rf"\b{port}\b", str(free_port()), script)
    env = {key: value for key, value in os.environ.items() if not key.startswith("KVIK_")}
    env |= {"PATH": f"{BINARY.parent}:{env['PATH']}", "HOME": str(tmp_path)}
    ran = in_one_shell(script, tmp_path, env)
    answers = [json.loads(line) for line in ran.splitlines() if line.startswith("{")]
    assert len(answers) == 4 and all(answer["choices"][0]["message"]["content"] for answer in answers), ran


def in_one_shell(script, folder, env):
    """What it prints; nothing that it starts outlives it."""
    shell = subprocess.Popen(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        said, _ = shell.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    logs = "".join(path.read_text()[-1000:] for path in folder.glob("*.log")) if shell.returncode else ""
    assert shell.returncode == 0, said + logs
    return said
