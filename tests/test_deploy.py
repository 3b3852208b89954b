"""The Kubernetes manifest: its parts agree, its scripts do what a pod's shell makes of them."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedps.console import flags
from embedps.errors import ServerLostError
from embedps.run.config import TrainConfig
from embedps.run.run_flags import RunFlags
from embedps.server import ServerConfig
from embedps.serving.server.serve_config import ServeConfig
from tests.builders import ROOT
from tools.reference_pages import declared_metrics

SPOT = "node.example.com/spot"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MANIFEST = ROOT / "deploy" / "run" / "kubernetes.yaml"


def load() -> dict[tuple[str, str], dict[str, Any]]:
    documents = yaml.safe_load_all(MANIFEST.read_text())
    return {(d["kind"], d["metadata"]["name"]): d for d in documents}


def pods() -> dict[str, dict[str, Any]]:
    return {
        name: d["spec"]["template"]
        for (_, name), d in load().items()
        if "template" in d.get("spec", {})
    }


def test_the_dashboard_and_the_alerts_name_metrics_that_there_are():
    rules = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"][0]["rules"]
    board = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions = [*shown, *(rule["expr"] for rule in rules)]
    named = {name for e in expressions for name in re.findall(r"\b(?:embedps|process)_\w+", e)}
    known = {name for metrics in declared_metrics().values() for name in metrics}
    known |= {f"process_{name}" for name in ("resident_memory_bytes", "cpu_seconds_total")}
    parts = {name: re.sub("_(sum|count|bucket)$", "", name) for name in named}
    assert [name for name, whole in parts.items() if not {name, whole} & known] == []
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(set(rule["annotations"]) == {"means", "do"} for rule in rules)


def test_manifest_has_each_part_once():
    assert set(load()) == {
        ("Service", "embedps"),
        ("NetworkPolicy", "embedps"),
        ("ConfigMap", "embedps"),
        ("StatefulSet", "ps"),
        ("StatefulSet", "worker"),
        ("Job", "chief"),
        ("Job", "evaluator"),
    }


def test_addresses_are_those_of_the_pods():
    found = load()
    cluster = json.loads(found["ConfigMap", "embedps"]["data"]["cluster.json"])
    port = found["Service", "embedps"]["spec"]["ports"][0]["port"]
    for job in ("ps", "worker"):
        spec = found["StatefulSet", job]["spec"]
        assert spec["serviceName"] == "embedps"
        names = [f"{job}-{i}.embedps:{port}" for i in range(spec["replicas"])]
        assert cluster[job] == names
    chief = pods()["chief"]["spec"]
    assert cluster["chief"] == [f"{chief['hostname']}.{chief['subdomain']}:{port}"]
    policy = found["NetworkPolicy", "embedps"]["spec"]
    assert [p["port"] for p in policy["ingress"][0]["ports"]] == [port]
    for name in ("ps", "worker", "chief"):
        labels = pods()[name]["metadata"]["labels"]
        assert found["Service", "embedps"]["spec"]["selector"].items() <= labels.items()
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()


def test_pods_have_longer_than_the_programs_take_and_mount_what_they_name():
    for name, pod in pods().items():
        spec = pod["spec"]
        if name != "evaluator":
            assert spec["terminationGracePeriodSeconds"] > TrainConfig.grace_secs
        (container,) = spec["containers"]
        mounted = {m["name"] for m in container["volumeMounts"]}
        assert mounted == {v["name"] for v in spec["volumes"]}, name


def test_chiefs_job_starts_it_again_but_not_after_an_error():
    job = load()["Job", "chief"]["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # as podFailurePolicy asks for
    ignored, failed = job["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore"
    assert failed["action"] == "FailJob"
    assert failed["onExitCodes"]["values"] == [1, 2]
    assert ServerLostError.exit_code not in failed["onExitCodes"]["values"]
    assert job["backoffLimit"] >= 100


def run_script(
    folder: Path, name: str, python: str, data: dict[str, str] | None = None, **env: str
) -> subprocess.Popen[str]:
    """Starts a script of the ConfigMap, in which `python` is a shell program."""
    (folder / "config").mkdir()
    for each, text in (data or load()["ConfigMap", "embedps"]["data"]).items():
        text = text.replace("/config/", f"{folder}/config/")
        (folder / "config" / each).write_text(text.replace("/model/", f"{folder}/model/"))
    (folder / "model").mkdir()
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{python}\n")
    program.chmod(0o755)
    return subprocess.Popen(
        ["sh", str(folder / "config" / name)],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **env},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("pod", "job", "index"), [("ps-1", "ps", 1), ("worker-12", "worker", 12)])
def test_server_is_told_its_task_by_its_pods_name(tmp_path, pod, job, index):
    process = run_script(tmp_path, "serve.sh", 'echo "$TF_CONFIG"; echo "$@"', HOSTNAME=pod)
    config, arguments = process.communicate(timeout=30)[0].splitlines()
    assert json.loads(config)["task"] == {"type": job, "index": index}
    assert json.loads(config)["cluster"]["chief"] == ["chief.embedps:2222"]
    program, *given = arguments.removeprefix("-m ").split()
    assert program == "embedps.server"
    monitoring = flags.read(ServerConfig, given, program, None).monitoring
    assert_prometheus_finds(monitoring.metrics_port, pods()[job])


def assert_prometheus_finds(port: int | None, pod: dict[str, Any]) -> None:
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    policy = load()["NetworkPolicy", "embedps"]["spec"]
    assert policy["ingress"][1] == {"ports": [{"port": port, "protocol": "TCP"}]}


def test_the_chief_is_told_what_its_command_takes(tmp_path):
    output, _ = run_script(tmp_path, "train.sh", 'echo "$@"').communicate(timeout=30)
    program, *given = output.removeprefix("-m ").split()
    config = RunFlags(given, program, "").read().config
    assert_prometheus_finds(config.monitoring.metrics_port, pods()["chief"])


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_the_manifests_are_of_the_apis_of_the_last_four_minor_versions(version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="`make env` installs it")
    for path in (MANIFEST, ROOT / "deploy" / "serve.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            assert kubernetes.validate(document, version, strict=True) == version


def overlaid(overlay: str) -> dict[str, dict[str, Any]]:
    """What Kustomize makes of an overlay, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not here")
    command = ["kubectl", "kustomize", str(ROOT / "deploy" / overlay)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return {f"{d['kind']} {d['metadata']['name']}": d for d in yaml.safe_load_all(made)}


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_the_run_on_spot_nodes_is_of_the_apis_of_the_last_four_minor_versions(version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="`make env` installs it")
    made = overlaid("spot")
    assert {tuple(name.split()) for name in made} == set(load())
    for document in made.values():
        assert kubernetes.validate(document, version, strict=True) == version


def test_only_workers_run_on_spot_nodes_and_end_within_the_notice(tmp_path: Path) -> None:
    made = overlaid("spot")
    worker = made["StatefulSet worker"]["spec"]["template"]["spec"]
    assert worker["nodeSelector"] == {SPOT: "true"}
    assert [each["key"] for each in worker["tolerations"]] == [SPOT]
    for name in ("StatefulSet ps", "Job chief"):
        spec = made[name]["spec"]["template"]["spec"]
        (term,) = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": SPOT, "operator": "DoesNotExist"}]
        assert "tolerations" not in spec
    environments = {
        name: {
            e["name"]: e["value"]
            for e in made[name]["spec"]["template"]["spec"]["containers"][0]["env"]
        }
        for name in ("StatefulSet worker", "Job chief")
    }
    grace = environments["StatefulSet worker"]
    assert int(grace["GRACE_SECS"]) < worker["terminationGracePeriodSeconds"] < 30  # the notice
    process = run_script(tmp_path, "serve.sh", 'echo "$@"', HOSTNAME="worker-0", **grace)
    assert f"--grace-secs={grace['GRACE_SECS']} " in process.communicate(timeout=30)[0]


def test_the_chief_of_a_run_on_spot_nodes_starts_with_one_worker(tmp_path: Path) -> None:
    (container,) = overlaid("spot")["Job chief"]["spec"]["template"]["spec"]["containers"]
    more = {each["name"]: each["value"] for each in container["env"]}
    output, _ = run_script(tmp_path, "train.sh", 'echo "$@"', **more).communicate(timeout=30)
    program, *given = output.removeprefix("-m ").split()
    cluster = RunFlags(given, program, "").read().config.cluster
    assert cluster.min_workers == 1


def jobs_of_the_set() -> dict[str, dict[str, Any]]:
    jobs = overlaid("jobset")["JobSet run"]["spec"]["replicatedJobs"]
    return {job["name"]: job["template"]["spec"] for job in jobs}


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_the_jobs_of_the_set_are_of_the_apis_of_the_last_four_minor_versions(version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="`make env` installs it")
    made = overlaid("jobset")
    assert set(made) == {"JobSet run", "ConfigMap embedps", "NetworkPolicy embedps"}
    for name, spec in jobs_of_the_set().items():
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        assert kubernetes.validate(job, version, strict=True) == version


def test_pods_of_the_set_are_those_of_the_run() -> None:
    jobs, single = jobs_of_the_set(), load()
    assert set(jobs) == set(pods())
    for name, pod in pods().items():
        template = jobs[name]["template"]
        assert template["metadata"] == pod["metadata"]
        ours, (container,) = template["spec"], template["spec"]["containers"]
        theirs = {k: v for k, v in pod["spec"].items() if k not in ("hostname", "subdomain")}
        if name in ("ps", "worker"):
            assert container.pop("env") == [{"name": "JOB", "value": name}]
            assert container["command"] == ["sh", "/config/serve-in-job.sh"]
            container["command"] = theirs["containers"][0]["command"]
            assert ours.pop("restartPolicy") == "Never"
            replicas = single["StatefulSet", name]["spec"]["replicas"]
            assert jobs[name]["completions"] == jobs[name]["parallelism"] == replicas
            (rule,) = jobs[name]["podFailurePolicy"]["rules"]
            assert rule["action"] == "Ignore"
        else:
            job = single["Job", name]["spec"]
            assert jobs[name].get("podFailurePolicy") == job.get("podFailurePolicy")
        assert ours == theirs


def test_addresses_of_the_set_are_those_of_its_pods() -> None:
    made = overlaid("jobset")
    spec = made["JobSet run"]["spec"]
    cluster = json.loads(made["ConfigMap embedps"]["data"]["cluster.json"])
    for name, job in jobs_of_the_set().items():
        if name != "evaluator":  # JobSet names pods by set, job, number of the job, and index
            addresses = [
                f"run-{name}-0-{i}.{spec['network']['subdomain']}:2222"
                for i in range(job["completions"])
            ]
            assert cluster[name] == addresses
    done = spec["successPolicy"]
    assert (done["operator"], set(done["targetReplicatedJobs"])) == ("All", {"chief", "evaluator"})


def test_server_in_a_job_is_told_its_task_and_never_ends_as_done(tmp_path: Path) -> None:
    data = overlaid("jobset")["ConfigMap embedps"]["data"]
    program = """
trap 'echo told; exit 0' TERM
echo "$TF_CONFIG"
while :; do sleep 0.1; done
"""
    process = run_script(
        tmp_path, "serve-in-job.sh", program, data, HOSTNAME="run-worker-0-11", JOB="worker"
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["task"] == {"type": "worker", "index": 11}
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "told\n"
    assert process.returncode == 75


@pytest.mark.parametrize(
    ("program", "finished", "code"),
    [
        ("exit 0", "true", 0),
        ("exit 0", "false", 75),
        ("exit 75", "false", 75),
        ("exit 1", "false", 1),
    ],
)
def test_chiefs_script_tells_the_job_whether_the_run_is_done(tmp_path, program, finished, code):
    write = f"""echo '{{"finished": {finished}}}' > {tmp_path}/model/summary.json"""
    process = run_script(tmp_path, "train.sh", f"{write}; {program}")
    process.communicate(timeout=30)
    assert process.returncode == code


def test_notice_to_the_chiefs_pod_reaches_the_program(tmp_path):
    summary = tmp_path / "model" / "summary.json"
    program = f"""
save() {{ echo '{{"finished": false}}' > {summary}; echo told; exit 0; }}
trap save TERM
echo up
while :; do sleep 0.1; done
"""
    process = run_script(tmp_path, "train.sh", program)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "told\n"
    assert process.returncode == 75


def test_a_served_models_manifest_is_what_the_command_takes():
    service, deployment = yaml.safe_load_all((ROOT / "deploy" / "serve.yaml").read_text())
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    options = flags.read(ServeConfig, container["args"], "serve", None)
    ports = [each["port"] for each in service["spec"]["ports"]]
    assert ports == [options.port, options.rest_port]
    assert ports == [each["containerPort"] for each in container["ports"]]
    assert container["readinessProbe"]["grpc"]["port"] == options.port
    assert template["spec"]["terminationGracePeriodSeconds"] > options.grace_secs
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(options.rest_port)
    assert deployment["spec"]["replicas"] > 1
    labels = template["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounted.keys() == {v["name"] for v in template["spec"]["volumes"]}
    assert options.model_dir == (mounted["model"],)
