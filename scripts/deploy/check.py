"""Checks of Dockerfile and deploy/, for scripts/deploy-test.sh: Kubernetes' own schemas, and that
what the files name is there: labels, ports, paths, metrics and settings of the server."""
import pathlib
import re
import sys

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The oldest version whose fields the manifests use (lifecycle.preStop.sleep), and the newest known.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
# Resources that come from elsewhere, whose schemas a cluster brings.
CUSTOM = {"Kustomization", "InferencePool", "HTTPRoute"}
problems = []


def check(holds, problem):
    if not holds:
        problems.append(problem)


def source(pattern):
    return "\n".join(path.read_text() for path in sorted(ROOT.glob(pattern)))


documents = {}
validated = 0
for path in sorted((ROOT / "deploy/kubernetes").glob("*.yaml")):
    for document in yaml.safe_load_all(path.read_text()):
        kind = document["kind"]
        documents[kind] = document
        if kind in CUSTOM:
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
                validated += 1
            except kubernetes_validate.ValidationError as error:
                problems.append(f"{path.name}, Kubernetes {version}: {error.message}")
check(validated >= 8, "no manifest was validated")

# A validator is believed only because it is seen to refuse.
broken = yaml.safe_load((ROOT / "deploy/kubernetes/deployment.yaml").read_text())
broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
try:
    kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)
    problems.append("the validator accepts a field that does not exist")
except kubernetes_validate.ValidationError:
    pass

pod = documents["Deployment"]["spec"]["template"]
container = pod["spec"]["containers"][0]
labels = pod["metadata"]["labels"].items()
for kind, selector in [
    ("Deployment", documents["Deployment"]["spec"]["selector"]["matchLabels"]),
    ("Service", documents["Service"]["spec"]["selector"]),
    ("PodDisruptionBudget", documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]),
    ("InferencePool", documents["InferencePool"]["spec"]["selector"]["matchLabels"]),
]:
    check(selector.items() <= labels, f"{kind}: no pod has its labels")
ports = {port["name"]: port["containerPort"] for port in container["ports"]}
check(documents["Service"]["spec"]["ports"][0]["targetPort"] in ports, "Service: no such port")
check(documents["InferencePool"]["spec"]["targetPorts"][0]["number"] in ports.values(),
      "InferencePool: no such port")
routed = documents["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0]
check(routed["name"] == documents["InferencePool"]["metadata"]["name"], "HTTPRoute: no such pool")
scaled = documents["HorizontalPodAutoscaler"]["spec"]
check(scaled["scaleTargetRef"]["name"] == documents["Deployment"]["metadata"]["name"],
      "HorizontalPodAutoscaler: no such Deployment")
mounted = {mount["name"] for mount in container["volumeMounts"]}
check(mounted == {volume["name"] for volume in pod["spec"]["volumes"]}, "volumes and mounts differ")
listed = re.findall(r"^#? *- (\S+\.yaml)$",
                    (ROOT / "deploy/kubernetes/kustomization.yaml").read_text(), re.M)
there = {path.name for path in (ROOT / "deploy/kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
check(set(listed) == there, "kustomization.yaml does not list what is there")

server = source("crates/server/src/*.rs")
for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
    get = container[probe]["httpGet"]
    check(f'.route("{get["path"]}"' in server and get["port"] in ports, f"{probe}: no such place")
scaling = (ROOT / "docs/scaling.md").read_text()
for metric in scaled["metrics"]:
    name = metric["pods"]["metric"]["name"]
    check(f'"{name.replace("vllm_", "vllm:")}"' in server, f"the server has no metric {name}")
    check(name.split("_", 1)[1] in scaling, f"docs/scaling.md has no rule for {name}")

# Settings are environment variables that the program reads.
program = source("crates/*/src/**/*.rs")
unit = (ROOT / "deploy/dunlin.service").read_text()
dockerfile = (ROOT / "Dockerfile").read_text()
for file, text in [("deploy/dunlin.service", unit), ("Dockerfile", dockerfile)]:
    for name in set(re.findall(r"DUNLIN_[A-Z_]+", text)):
        check(f'"{name}"' in program, f"{file}: the program does not read {name}")
environment = {entry["name"]: entry["value"] for entry in container["env"]}
for name in environment:
    check(f'"{name}"' in program, f"deployment.yaml: the program does not read {name}")

# Requests under way may end before the process is killed.
drain = int(environment["DUNLIN_DRAIN_TIMEOUT"])
wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
check(drain + wait < pod["spec"]["terminationGracePeriodSeconds"], "pods are killed while they drain")
check(int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > 30, "the unit is killed while it drains")

# Nobody runs as root.
user = re.search(r"^USER (\d+):(\d+)$", dockerfile, re.M)
security = pod["spec"]["securityContext"]
check(user and int(user[1]) == security["runAsUser"] > 0, "Dockerfile and pod differ in their user")
check(security["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"],
      "the pod is not confined")

for problem in problems:
    print(problem)
print(f"{validated} validations, {len(problems)} problems; "
      f"no schema here for {', '.join(sorted(CUSTOM))}")
sys.exit(bool(problems))
