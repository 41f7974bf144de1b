"""Checkpoints as the tests compare them, and files of tensors as they write them."""

import array
import json


def safetensors(tensors):
    """The bytes of a file of {name: (type, shape, bytes)}."""
    header, at = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(t[2] for t in tensors.values())


def read_tensors(path):
    """The metadata of a safetensors file, and its fp32 tensors by name."""
    with open(path, "rb") as file:
        whole = file.read()
    header_size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + header_size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        tensors[name] = array.array("f", whole[8 + header_size + begin : 8 + header_size + end])
    return metadata, tensors


def distance(a, b):
    """||a - b|| / ||b|| over all parameters, without the optimiser's state."""
    names = [n for n in b if not n.startswith(("momentum.", "variance."))]
    assert (
        sorted(names) == sorted(n for n in a if not n.startswith(("momentum.", "variance.")))
        and names
    )
    difference = sum((x - y) ** 2 for n in names for x, y in zip(a[n], b[n]))
    return (difference / sum(y * y for n in names for y in b[n])) ** 0.5
