"""gossipd.load: reads what a node writes, and refuses what is damaged."""

import errno
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

import gossipd
import gossipd.export


def safetensors(entries, metadata=None, data=None):
    """The bytes of a file with `entries`: name, type, shape, bytes."""
    header, body = {}, b""
    for name, kind, shape, raw in entries:
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        body += raw
    if metadata is not None:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + (body if data is None else data)


def written(tmp_path, content):
    path = tmp_path / "some.safetensors"
    path.write_bytes(content)
    return path


WEIGHT = np.arange(6, dtype="<f4").reshape(2, 3)
CHECKPOINT = safetensors(
    [
        ("head.weight", "F32", [2, 3], WEIGHT.tobytes()),
        ("momentum.head.weight", "F32", [2, 3], (WEIGHT * 2).tobytes()),
        ("variance.head.weight", "F32", [2, 3], (WEIGHT * 3).tobytes()),
    ],
    {"format": "gossipd-checkpoint-1", "step": "7", "samples": "224"},
)


def test_a_checkpoint_is_the_model_with_the_optimiser_apart(tmp_path):
    model = gossipd.load(written(tmp_path, CHECKPOINT))
    assert list(model) == ["head.weight"]
    np.testing.assert_array_equal(model["head.weight"], WEIGHT)
    np.testing.assert_array_equal(model.optimizer["momentum"]["head.weight"], WEIGHT * 2)
    np.testing.assert_array_equal(model.optimizer["variance"]["head.weight"], WEIGHT * 3)
    assert (model.step, model.samples) == (7, 224)


@pytest.mark.parametrize("kinds", [(), ("momentum",), ("momentum", "variance")])
def test_tensors_of_the_model_may_be_called_as_the_optimisers(tmp_path, kinds):
    model = {"variance.w": 1, "mean.w": 2, "momentum.b": 3}
    state = {kind: {"variance.w": 4, "mean.w": 5} for kind in kinds}
    values = {f"{kind}.{name}": v for kind in kinds for name, v in state[kind].items()}
    entries = [
        (name, "F32", [], np.float32(value).tobytes())
        for name, value in {**model, **values}.items()
    ]
    read = gossipd.load(written(tmp_path, safetensors(entries, {"format": "gossipd-checkpoint-1"})))
    assert dict(read) == model
    assert read.optimizer == state


def test_its_state_dict_goes_into_a_module(tmp_path):
    torch = pytest.importorskip("torch")
    path = written(tmp_path, CHECKPOINT)
    network = torch.nn.Sequential()
    network.add_module("head", torch.nn.Linear(3, 2, bias=False))
    network.load_state_dict(gossipd.load(path).state_dict())
    np.testing.assert_array_equal(network.head.weight.detach().numpy(), WEIGHT)
    gossipd.load(path).state_dict()["head.weight"].zero_()
    assert path.read_bytes() == CHECKPOINT  # writing stays in this process


def test_a_foreign_file_keeps_all_of_its_tensors(tmp_path):
    path = written(tmp_path, safetensors([("momentum.x", "F32", [1], b"\0\0\x80\x3f")]))
    model = gossipd.load(path)
    assert dict(model) == {"momentum.x": np.float32(1)} and not model.optimizer


@pytest.mark.parametrize(
    "kind,raw,value",
    [
        ("BF16", b"\xc0\x3f", 1.5),
        ("F16", b"\x00\x3e", 1.5),
        ("F64", np.float64(1.5).tobytes(), 1.5),
        ("I64", (7).to_bytes(8, "little"), 7),
        ("BOOL", b"\x01", True),
    ],
)
def test_every_type_has_its_value(tmp_path, kind, raw, value):
    assert gossipd.load(written(tmp_path, safetensors([("x", kind, [], raw)])))["x"] == value


def test_empty_tensors_and_empty_files_are_whole(tmp_path):
    assert gossipd.load(written(tmp_path, safetensors([("x", "F32", [0, 4], b"")])))["x"].size == 0
    assert len(gossipd.load(written(tmp_path, safetensors([])))) == 0


@pytest.mark.parametrize(
    "content,words",
    [
        (b"", "no whole safetensors file"),
        (b"\xff" * 8, "no whole safetensors file"),
        ((2**40).to_bytes(8, "little") + b"{}", "no whole safetensors file"),
        (b"\x02" + b"\0" * 7 + b"{", "no whole safetensors file"),
        (b"\x02" + b"\0" * 7 + b"{{", "no JSON"),
        (b"\x02" + b"\0" * 7 + b"[]", "no list of tensors"),
        (safetensors([("x", "F32", [2], b"\0" * 4)]), "of shape [2] has 4 bytes"),
        (safetensors([("x", "F32", [1], b"\0" * 4)], data=b""), "damaged"),
        (safetensors([("x", "F32", [-1, -1], b"\0" * 4)]), "damaged"),
        (safetensors([("x", "F32", [2**62, 2**62], b"\0" * 4)]), "of shape"),
        (safetensors([("x", "F32", [0.5], b"\0" * 4)]), "damaged"),
        (safetensors([("x", "F8_E4M3", [1], b"\0")]), "'F8_E4M3', which NumPy does not have"),
        (safetensors([("x", ["F32"], [1], b"\0")]), "damaged"),
        (safetensors([], metadata=[]), "no words"),
    ],
)
def test_a_damaged_file_is_refused_in_words(tmp_path, content, words):
    with pytest.raises(gossipd.CheckpointError) as refusal:
        gossipd.load(written(tmp_path, content))
    assert words in str(refusal.value)


def test_overlapping_tensors_are_refused(tmp_path):
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps({"a": entry, "b": entry}).encode()
    with pytest.raises(gossipd.CheckpointError, match="overlap"):
        gossipd.load(written(tmp_path, len(text).to_bytes(8, "little") + text + b"\0" * 4))


def test_no_change_of_bytes_makes_it_crash(tmp_path):
    generator = random.Random(1)
    for _ in range(300):
        content = bytearray(CHECKPOINT)
        for _ in range(generator.randrange(1, 4)):
            content[generator.randrange(len(content))] = generator.randrange(256)
        if generator.randrange(3) == 0:  # in most places that ends it before its header does
            del content[generator.randrange(len(content) + 1) :]
        try:
            gossipd.load(written(tmp_path, bytes(content)))
        except gossipd.CheckpointError:
            pass


def tied_network():
    torch = pytest.importorskip("torch")

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(3, 2)
            self.norm = torch.nn.BatchNorm1d(2)
            self.head = torch.nn.Linear(2, 3, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("mask", torch.full((2,), float("-inf")))

        def forward(self, x):
            return self.head(self.norm(x))

    return Tied()


TIED = {"embed.weight": WEIGHT.reshape(3, 2), "norm.weight": np.ones(2, "<f4") * 5}
TIED.update({f"norm.{n}": np.ones(2, "<f4") for n in ("bias", "running_mean", "running_var")})


def of_arrays(tmp_path, arrays):
    entries = [(n, "F32", list(a.shape), a.tobytes()) for n, a in arrays.items()]
    return str(written(tmp_path, safetensors(entries)))


def test_an_export_takes_a_checkpoint_that_has_tied_weights_once_and_no_constants(tmp_path):
    model = tied_network()
    gossipd.export.take_checkpoint(model, of_arrays(tmp_path, TIED))
    np.testing.assert_array_equal(model.head.weight.detach().numpy(), TIED["embed.weight"])
    assert model.norm.weight.tolist() == [5, 5] and model.norm.num_batches_tracked == 0


@pytest.mark.parametrize("without", ["norm.bias", "norm.running_var", "embed.weight"])
def test_an_export_takes_no_checkpoint_with_other_gaps(tmp_path, without):
    gap = {name: array for name, array in TIED.items() if name != without}
    with pytest.raises(gossipd.export.Unsupported, match=f"lacks {without}.*--arguments"):
        gossipd.export.take_checkpoint(tied_network(), of_arrays(tmp_path, gap))
    strange = {**TIED, "tail.weight": WEIGHT}
    with pytest.raises(gossipd.export.Unsupported, match="the module lacks: tail.weight"):
        gossipd.export.take_checkpoint(tied_network(), of_arrays(tmp_path, strange))


@pytest.mark.parametrize("out", ["out.pt", "out.onnx"])
def test_an_export_with_a_wrong_shape_ends_with_one_sentence(tmp_path, monkeypatch, capsys, out):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    words = ["torch.nn:Linear", out, "--arguments", '{"in_features": 3, "out_features": 2}']
    assert gossipd.export.main([*words, "--input", "4"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("gossipd export: forward takes no batch of [2, 4] (")
    assert said.count("\n") == 1 and "; give the shape of one sample with --input" in said
    assert not (tmp_path / out).exists()


def test_an_export_with_wrong_arguments_names_them(capsys):
    words = ["torch.nn:Linear", "out.pt", "--input", "4", "--arguments"]
    assert gossipd.export.main([*words, '{"in_features": 4, "out_features": "x"}']) == 1
    said = capsys.readouterr().err
    assert "torch.nn:Linear(in_features=4, out_features='x') cannot be made: " in said
    assert said.endswith("; see --arguments\n")


@pytest.mark.parametrize(
    "asked,way_out",
    [
        ("mine.nothing:Net", "write it as"),
        ("mine.net.deeper:Net", "write it as"),
        ("nothing.net:Net", "write it as"),
        ("mine.net:Nothing", "write it as"),
        (":Net", "write it as"),
        ("mine.lacks:Net", "No module named 'no_such_package'; install what mine.lacks imports"),
        ("mine.renamed:Net", "install what mine.renamed imports, or mend the import"),
    ],
)
def test_an_export_tells_a_class_that_is_not_there_from_one_that_lacks_something(
    tmp_path, monkeypatch, asked, way_out
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "net.py").write_text("class Net: pass\n")
    (tmp_path / "mine" / "lacks.py").write_text("import no_such_package\n")
    (tmp_path / "mine" / "renamed.py").write_text("from json import no_such_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(gossipd.export.Unsupported, match=way_out) as refused:
        gossipd.export.load_class(asked)
    assert str(refused.value).startswith(asked + ": ")


@pytest.mark.parametrize(
    "words", [["--tokens", "0"], ["--tokens=-1"], ["--tokens=8", "--vocabulary", "0"]]
)
def test_an_export_of_no_tokens_is_a_mistake_of_usage(words, capsys):
    with pytest.raises(SystemExit) as end:
        gossipd.export.main(["torch.nn:Linear", "out.pt", *words])
    assert end.value.code == 2 and "is no whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_export_that_is_cut_off_leaves_the_file_before_and_no_part(tmp_path, monkeypatch, call):
    out = tmp_path / "out.pt"
    gossipd.export.write_whole(str(out), b"before")
    done = []
    for name in ("fsync", "replace"):
        plain = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, f=plain: done.append(n) or f(*a))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            gossipd.export.write_whole(str(out), b"after")
    assert os.listdir(tmp_path) == ["out.pt"] and out.read_bytes() == b"before"
    done.clear()
    gossipd.export.write_whole(str(out), b"after")
    assert done == ["fsync", "replace"] and out.read_bytes() == b"after"


def test_an_export_to_a_full_disk_leaves_no_part(tmp_path):
    """With a limit of the kernel's on the size of a file, which only a child may have."""
    out = tmp_path / "out.pt"
    text = (
        "import resource, signal, sys, gossipd.export as e;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16));"
        "e.write_whole(sys.argv[1], bytes(1 << 20))"
    )
    source = os.path.dirname(os.path.dirname(gossipd.__file__))
    ran = subprocess.run(
        [sys.executable, "-c", text, str(out)],
        env={**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1 and "File too large" in ran.stderr and not os.listdir(tmp_path)
