#!/usr/bin/env python3
"""tests/gpu/run_gpu.py - everything that needs an NVIDIA card, on one machine, within ten minutes.

    run_gpu.py [--bin DIR]                      from a build with PyPI's LibTorch
    run_gpu.py --bundle DIR [--torch DIR]       from a bundle; LibTorch is the folder `torch` of an
                                                installed wheel, by default python3's own
    run_gpu.py --make-bundle DIR [--bin DIR]    makes one of a build: programs without symbols and
                                                their small libraries, at most 64 MB
    run_gpu.py --device cpu                     tries the programs and this script without a card
    run_gpu.py --self-test                      checks that without a card it fails and says why

Goes through five parts: the preflight (without a card everything ends there, as a failure), the
cases of gpu_tests and of gpu_blocks, two daemons on the card beside one on the CPU, and the speed
of two daemons with and without exchange. Prints what failed and what this machine cannot show,
writes figures and results to --json (default gpu.json), and ends with the line "N passed, N
failed".
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = ("gossipd", "gossipctl", "gpu_tests", "gpu_blocks")
BUNDLE_BYTES_MAX = 64 * 1000 * 1000
CASES_S_MAX = 480  # of gpu_tests, all together
DAEMONS_S_MAX = 200
SPEED_S = 15.0  # of one measurement
SPEED_PAIRS = 3
# What every machine has, and what comes with LibTorch.
NOT_BUNDLED = re.compile(
    r"(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libtorch|libc10|libcaffe2"
    r"|libcud|libnv|libnccl|libgomp)[._-]"
)


class Failed(Exception):
    """Ends the run with its text."""


# ---- where programs and libraries are ----


def library_path(torch, *more):
    """LD_LIBRARY_PATH for a wheel's LibTorch, whose NVIDIA libraries lie beside it."""
    folders = [*more]
    if torch:
        torch = pathlib.Path(torch)
        folders += [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    return ":".join(str(folder) for folder in folders)


def find_torch(given):
    if given:
        if not (pathlib.Path(given) / "lib/libtorch.so").exists():
            raise Failed(f"--torch {given}: there is no lib/libtorch.so; it is the folder `torch`")
        return given
    answer = subprocess.run(
        ["python3", "-c", "import torch; print(torch.__path__[0])"], capture_output=True, text=True
    )
    if answer.returncode != 0:
        raise Failed("python3 has no torch; install the bundle's version, or give --torch DIR")
    return answer.stdout.strip()


def version_of(torch):
    text = (pathlib.Path(torch) / "version.py").read_text(encoding="utf-8")
    return re.search(r"__version__ = '([^']+)'", text)[1]


def minor(version):
    return ".".join(version.split(".")[:2])


class Programs:
    """Those above with the environment that they need."""

    def __init__(self, options):
        self.environment = dict(os.environ)
        if options.bundle:
            bundle = pathlib.Path(options.bundle).resolve()
            if not (bundle / "bundle.json").exists():
                raise Failed(f"--bundle {bundle}: there is no bundle.json; make one: --make-bundle")
            wanted = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))["torch"]
            self.folder = bundle / "bin"
            torch = None if options.device == "cpu" and not options.torch else options.torch
            if torch or options.device != "cpu":
                torch = find_torch(torch)
                if minor(version_of(torch)) != minor(wanted):
                    raise Failed(
                        f"the bundle is built for LibTorch {wanted}, {torch} is"
                        f" {version_of(torch)}; install torch=={wanted}, or make a bundle for it"
                    )
            path = library_path(torch, bundle / "lib")
        else:
            self.folder = pathlib.Path(options.bin).resolve()
            path = library_path(options.torch)
        if path:
            old = self.environment.get("LD_LIBRARY_PATH")
            self.environment["LD_LIBRARY_PATH"] = f"{path}:{old}" if old else path
        for name in PROGRAMS:
            if not (self.folder / name).exists():
                raise Failed(f"{self.folder / name} is missing; build it, or give --bin DIR")

    def cases(
        self, program, *arguments, device, figures=None, timeout_s=CASES_S_MAX, shown=False
    ):
        """Exit code and output, printed as it comes if `shown`."""
        environment = {**self.environment, "GOSSIPD_GPU_DEVICE": device}
        if figures:
            environment["GOSSIPD_GPU_FIGURES"] = str(figures)
        line = [self.folder / program, "--duration=true", *arguments]
        said, hangs = [], False
        with subprocess.Popen(
            line,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:

            def end():
                nonlocal hangs
                hangs = True
                process.kill()

            limit = threading.Timer(timeout_s, end)
            limit.start()
            try:
                for text in process.stdout:
                    said.append(text)
                    if shown:
                        print(text, end="", flush=True)
                process.wait()
            except BaseException:
                process.kill()
                raise
            finally:
                limit.cancel()
        said = "".join(said)
        if hangs:
            raise Failed(f"{program} hangs after {timeout_s} s" + ("" if shown else f"\n{said}"))
        return process.returncode, said


# ---- the parts ----


def preflight(programs, device):
    if device != "cpu":
        smi = shutil.which("nvidia-smi")
        fields = "name,driver_version,memory.total,memory.free,compute_cap"
        if smi:
            asked = subprocess.run(
                [smi, f"--query-gpu={fields}", "--format=csv,noheader"],
                capture_output=True,
                text=True,
            )
            print(f"cards: {(asked.stdout or asked.stderr).strip()}")
    code, said = programs.cases("gpu_tests", "--test-case=preflight*", device=device, timeout_s=120)
    if code != 0 or "1 passed" not in said:
        reason = re.search(r"values: .*\n  logged: (.*)", said) or re.search(
            r"logged: (.*)", said
        )
        raise Failed(
            "there is no CUDA device that can be used, so nothing was tested: "
            + (reason[1] if reason else said[-1500:])
        )


def cases(program, programs, device, report, folder):
    """Counts of passed and failed cases of one program."""
    figures = pathlib.Path(folder) / f"{program}.json"
    # gpu_tests' preflight is a part of its own
    chosen = ["--test-case-exclude=preflight*"] if program == "gpu_tests" else []
    code, said = programs.cases(program, *chosen, device=device, figures=figures, shown=True)
    if figures.exists():
        report.setdefault("figures", {}).update(json.loads(figures.read_text(encoding="utf-8")))
    counts = re.search(r"test cases: +(\d+) \| +(\d+) passed \| +(\d+) failed", said)
    if not counts:
        raise Failed(f"{program} ended early with code {code}: {said[-2000:]}")
    return int(counts[2]), int(counts[3])


def write_idx(folder, count=2000, classes=4, side=28):
    """Images with a bright bar, in MNIST's format: training and test."""
    for name, images in (("train", count), ("t10k", count // 5)):
        pixels, labels = bytearray(), bytearray()
        for index in range(images):
            label = index % classes
            noise = (index * 2654435761) & 0xFFFFFFFF
            for row in range(side):
                for column in range(side):
                    noise = (noise * 1664525 + 1013904223) & 0xFFFFFFFF
                    at = (row, column, row + column, row - column)[label] % 7
                    pixels.append(200 if at == 3 else noise >> 26)
            labels.append(label)
        head = (0x803).to_bytes(4, "big") + images.to_bytes(4, "big")
        head += side.to_bytes(4, "big") * 2
        pathlib.Path(folder, f"{name}-images-idx3-ubyte").write_bytes(head + pixels)
        head = (0x801).to_bytes(4, "big") + images.to_bytes(4, "big")
        pathlib.Path(folder, f"{name}-labels-idx1-ubyte").write_bytes(head + labels)


def daemons(programs, device, report, folder):
    """Two nodes on the device and one on the CPU train one model."""
    os.environ.update(programs.environment)
    os.environ["GOSSIPD_BIN_DIR"] = str(programs.folder)
    sys.path.insert(0, str(HERE.parent / "e2e"))
    from cluster import with_cluster  # pylint: disable=import-outside-toplevel
    from tensors import distance, read_tensors  # pylint: disable=import-outside-toplevel

    data = os.path.join(folder, "data")
    os.mkdir(data)
    write_idx(data)

    def together(cluster):
        job = cluster.job(
            model='kind = "cnn"\nwidth = 8\nhidden = [32]',
            data='kind = "idx"\nshape = [1, 28, 28]\nclasses = 4',
            # at 0.05 one run of eight loses units at once and takes two classes for one to its end
            learning_rate=0.02,
            budget_samples=20_000,
            evaluate_every_samples=10_000,
            warmup_samples=1_000,
        )
        first = cluster.found(job, data=data, trainer__device=device)
        nodes = [first]
        for index, where in ((2, device), (3, "cpu")):
            nodes.append(
                cluster.joiner(
                    f"box{index}", first, data=data, shard=f"{index}/3", trainer__device=where
                ).start()
            )
        accuracy = []
        for node, where in zip(nodes, (device, device, "cpu")):
            status = node.wait(
                "the final checkpoint and its evaluation",
                lambda s: s["checkpoints"].get("final", {}).get("accuracy") is not None,
                DAEMONS_S_MAX,
            )
            found = status["trainer"]["device"]
            assert found == where, f"{node.name} trains on {found}, not on {where}"
            accuracy.append(status["accuracy"])
        finals = [read_tensors(node.checkpoint_path("final"))[1] for node in nodes]
        apart = [distance(other, finals[0]) for other in finals[1:]]
        report["daemons"] = {"accuracy": accuracy, "distance": apart}
        assert min(accuracy) > 0.9, f"accuracy {accuracy}"
        assert max(apart) < 0.02, f"the final models are {apart} apart"

    with_cluster("gpu", together)


def speed(programs, device, report, folder):
    """Samples a second of two daemons on the device, 100 M parameters each, that exchange, in parts
    of two that do not: pairs in turn.
    """
    from cluster import with_cluster  # pylint: disable=import-outside-toplevel

    text = os.path.join(folder, "text")
    os.mkdir(text)
    library = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    with open(os.path.join(text, "python.txt"), "wb") as out:
        for source in library:
            out.write(source.read_bytes())
    dry = device == "cpu"
    size = "dim = 24\ndepth = 1\nheads = 2" if dry else "dim = 832\ndepth = 12\nheads = 13"

    def samples_a_second(cluster, exchange):
        job = cluster.job(
            model='kind = "gpt"\n' + size,
            data='kind = "text"\nlength = 256\ntrain_files = ["python.txt"]',
            optimizer='kind = "adamw"\nlearning_rate = 0.0003',
            rest="" if dry else '[training]\nprecision = "bf16"',
            batch=2 if dry else 8,
            budget_samples=1_000_000_000,
        )
        settings = {"trainer__device": device, "exchange__enabled": str(exchange).lower()}
        first = cluster.found(job, data=text, shard="1/2", **settings)
        nodes = [first, cluster.joiner("box2", first, data=text, shard="2/2", **settings).start()]
        for node in nodes:
            node.wait_step(2 if dry else 50, DAEMONS_S_MAX)
        before, began = [node.status()["own_samples"] for node in nodes], time.monotonic()
        time.sleep(1 if dry else SPEED_S)
        after, seconds = [node.status()["own_samples"] for node in nodes], time.monotonic() - began
        links = [link for node in nodes for link in node.links().values()]
        figures["parameters"] = first.status()["model_floats"]
        applied = sum(link["deltas_applied"] for link in links)
        assert applied > 0 or not exchange, "nothing was exchanged"
        assert sum(after) > sum(before), "nothing was trained"
        return (sum(after) - sum(before)) / seconds

    figures = report["speed"] = {"samples_a_second": [], "on_to_off": []}
    for _ in range(1 if dry else SPEED_PAIRS):
        off, on = (with_cluster("gpu", samples_a_second, exchange) for exchange in (False, True))
        figures["samples_a_second"].append({"off": off, "on": on})
        figures["on_to_off"].append(on / off)


# ---- a bundle ----


def needed(program):
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    direct = subprocess.run(
        ["readelf", "-d", program], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"\(NEEDED\).*\[(.+)\]", direct)
    paths = dict(re.findall(r"^\s*(\S+) => (\S+)", out, re.MULTILINE))
    return [paths[name] for name in names if name in paths and not NOT_BUNDLED.match(name)]


def make_bundle(options):
    programs = Programs(options)
    target = pathlib.Path(options.make_bundle)
    if target.exists():
        raise Failed(f"--make-bundle {target}: it exists already; name a new folder")
    for folder in ("bin", "lib", "tests/gpu", "tests/e2e"):
        (target / folder).mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "figures.json"
        programs.cases("gpu_tests", "--test-case=none", device="cpu", figures=figures)
        torch = json.loads(figures.read_text(encoding="utf-8"))["torch"]
    waiting, seen = [], set()
    for name in PROGRAMS:
        subprocess.run(["strip", "-o", target / "bin" / name, programs.folder / name], check=True)
        waiting += needed(programs.folder / name)
    while waiting:
        library = waiting.pop()
        if library in seen:
            continue
        seen.add(library)
        shutil.copy(library, target / "lib")
        waiting += needed(library)
    shutil.copy(__file__, target / "tests/gpu")
    for name in ("cluster.py", "tensors.py"):
        shutil.copy(HERE.parent / "e2e" / name, target / "tests/e2e")
    (target / "bundle.json").write_text(json.dumps({"torch": torch}) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    if size > BUNDLE_BYTES_MAX:
        raise Failed(f"{target} has {size} bytes, more than {BUNDLE_BYTES_MAX}")
    print(f"{target}: {size / 1e6:.1f} MB, for LibTorch {torch}; run tests/gpu/run_gpu.py in it")


# ---- main ----


def self_test(options):
    """Without a card the run must fail and name the reason; a bundle must run like the build."""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    line = [sys.executable, __file__, "--bin", options.bin, "--json", os.devnull]
    line += ["--torch", options.torch] if options.torch else []
    ran = subprocess.run(line, capture_output=True, text=True, env=hidden, timeout=300)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1, said
    assert re.search(r"no CUDA device that can be used, so nothing was tested: \S", said), said
    assert said.rstrip().endswith("0 passed, 1 failed"), said
    with tempfile.TemporaryDirectory() as folder:
        options.make_bundle = os.path.join(folder, "bundle")
        make_bundle(options)
        script = os.path.join(options.make_bundle, "tests/gpu/run_gpu.py")
        line = [sys.executable, script, "--device", "cpu", "--bundle", options.make_bundle]
        line += ["--torch", options.torch] if options.torch else []
        line += ["--only", "preflight", "--json", os.devnull]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    print("without a card: a failure with its reason; a bundle runs")


def run(options):
    report = {"device": options.device, "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="gossipd-gpu-") as folder:
        programs = Programs(options)
        preflight(programs, options.device)
        passed += 1
        if options.only != "preflight":
            for program in ("gpu_tests", "gpu_blocks"):
                more, bad = cases(program, programs, options.device, report, folder)
                passed, failed = passed + more, failed + bad
            for part in (daemons, speed):
                try:
                    part(programs, options.device, report, folder)
                    passed += 1
                except (AssertionError, OSError, http.client.HTTPException) as error:
                    print(f"{part.__name__}: {error!r}")
                    failed += 1
    report.update(passed=passed, failed=failed)
    for what in report.get("figures", {}).get("not_covered", []):
        print(f"not covered here: {what}")
    with open(options.json, "w", encoding="utf-8") as out:
        json.dump(report, out, indent=2)
    print(json.dumps(report.get("figures", {}), indent=2))
    return passed, failed


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu for a dry run")
    parser.add_argument("--bin", default=str(HERE.parents[1] / "build/release-wheel/bin"))
    parser.add_argument("--bundle", help="folder made by --make-bundle")
    parser.add_argument("--torch", help="folder `torch` of an installed wheel")
    parser.add_argument("--json", default="gpu.json", help="where the report goes")
    parser.add_argument("--make-bundle", metavar="DIR")
    parser.add_argument("--only", choices=["preflight"], help="end after this part")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if not options.bundle and (HERE.parents[1] / "bundle.json").exists():
        options.bundle = str(HERE.parents[1])
    try:
        if options.self_test:
            return self_test(options)
        if options.make_bundle:
            return make_bundle(options)
        passed, failed = run(options)
    except Failed as error:
        print(f"run_gpu: {error}")
        if options.make_bundle:
            return 1
        passed, failed = 0, 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
