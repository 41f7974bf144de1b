#!/usr/bin/env python3
"""tests/unit_file_test.py - deploy/gossipd.service leaves a GPU's devices within reach, and a
node that outlives its children.

    tests/unit_file_test.py [ROOT]       complains about every directive that takes them away
    tests/unit_file_test.py --self-test  also plants each of them: it must be found

CUDA opens /dev/nvidia*, of which nvidia-uvm is made only when somebody asks for it. Each directive
below closes every device that it does not name; ProtectClock= says so in half a sentence of its
manual page.
"""

import configparser
import pathlib
import sys

CLOSES_DEVICES = {
    "PrivateDevices": {"yes", "true", "on", "1"},
    "ProtectClock": {"yes", "true", "on", "1"},
    "DevicePolicy": {"closed", "strict"},
    "DeviceAllow": None,  # whatever it names
    "MemoryDenyWriteExecute": {"yes", "true", "on", "1"},  # kernels are made at run time
}


def complaints(text):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    service = unit["Service"]
    for name, wrong in CLOSES_DEVICES.items():
        if name in service and (wrong is None or service[name].lower() in wrong):
            yield f"{name}={service[name]} keeps CUDA from its devices"
    if service.get("OOMPolicy") != "continue":
        yield "a job's trial that runs out of memory stops the node (OOMPolicy=continue)"
    if "nvidia-modprobe" not in service.get("ExecStartPre", ""):
        yield "nothing makes /dev/nvidia-uvm on a box without a graphical session (ExecStartPre=)"


def main(arguments):
    planted = "--self-test" in arguments
    rest = [argument for argument in arguments if argument != "--self-test"]
    root = pathlib.Path(rest[0]) if rest else pathlib.Path(__file__).parents[1]
    text = (root / "deploy/gossipd.service").read_text(encoding="utf-8")
    found = list(complaints(text))
    for complaint in found:
        print(f"deploy/gossipd.service: {complaint}")
    for name, wrong in CLOSES_DEVICES.items() if planted else ():
        value = sorted(wrong)[0] if wrong else "char-rtc r"
        if not list(complaints(text.replace("[Service]", f"[Service]\n{name}={value}", 1))):
            print(f"self-test: {name}={value} was not found")
            found.append(name)
    if planted and not list(complaints(text.replace("OOMPolicy=continue\n", ""))):
        print("self-test: a missing OOMPolicy= was not found")
        found.append("OOMPolicy")
    if not found:
        print("the unit leaves a GPU within reach")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
