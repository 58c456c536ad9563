# test-timeout: 60
"""What systemd/ and deploy/ would run is what was built: files parse, options and paths exist."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("EPD_BIN_DIR", os.path.join(ROOT, "build/bin"))
POD = os.path.join(ROOT, "deploy/kustomize/base/pod.yaml")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def run(*args):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=30, check=False)
    return done.returncode, done.stdout


def test_configs():
    for conf in ("systemd/epd.conf", "deploy/kustomize/base/epd.conf"):
        code, out = run(os.path.join(BIN, "epd"), "--check-config", "--config",
                        os.path.join(ROOT, conf))
        assert code == 0, (conf, out)


def test_unit():
    if shutil.which("systemd-analyze") is None:
        print("no systemd-analyze: the unit is not verified")
        return
    with tempfile.TemporaryDirectory() as folder:
        unit = read("systemd/epd.service").replace("/usr/local/bin/", BIN + "/")
        unit = unit.replace("User=epd\nGroup=epd\n", "")  # not a user of this machine
        path = os.path.join(folder, "epd.service")
        with open(path, "w", encoding="utf-8") as f:
            f.write(unit)
        code, out = run("systemd-analyze", "verify", "--man=no", path)
        ours = [line for line in out.splitlines() if "epd.service" in line]
        assert not ours, (code, out)


def commands(node):
    """Every command or args list of the pod with the container's entry point in front."""
    for container in node["spec"]["initContainers"] + node["spec"]["containers"]:
        yield (container.get("command") or ["epd"]) + container.get("args", [])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                yield container[probe]["exec"]["command"]


def test_pod():
    try:
        import yaml
    except ImportError:
        print("no yaml module: the manifests are not checked")
        return
    kustomization = yaml.safe_load(read("deploy/kustomize/base/kustomization.yaml"))
    for name in kustomization["resources"] + kustomization["configMapGenerator"][0]["files"]:
        assert os.path.exists(os.path.join(os.path.dirname(POD), name)), name
    pod = yaml.safe_load(read("deploy/kustomize/base/pod.yaml"))
    daemon = pod["spec"]["initContainers"][0]
    assert daemon["restartPolicy"] == "Always"  # a native sidecar
    for command in commands(pod):
        program = os.path.basename(command[0])
        verb = [a for a in command[1:2] if program == "epdctl"]
        code, text = run(os.path.join(BIN, program), *verb, "--help")
        assert code == 0, (command, text)
        _, common = run(os.path.join(BIN, program), "--help")
        for word in command[1:]:
            if word.startswith("--"):
                assert word in text + common, (command, word)
    trace = next(w for c in commands(pod) for w in c if w.endswith(".csv"))
    assert os.path.exists(os.path.join(ROOT, "tests/data", os.path.basename(trace)))
    assert os.path.basename(trace) in read("deploy/install.sh")


def test_image():
    for path in re.findall(r"deploy/[\w.-]+\.sh", read("deploy/Containerfile")):
        assert os.access(os.path.join(ROOT, path), os.X_OK), path


def main():
    tests = [test_configs, test_unit, test_pod, test_image]
    for test in tests:
        test()
        print("ok", test.__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
