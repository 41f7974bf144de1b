"""Exports a PyTorch module to TorchScript, for gossipd to train, or to ONNX, for others to run.

    gossipd export PACKAGE.MODULE:CLASS OUT.pt --input 1,28,28 [--arguments '{"classes": 10}']
    gossipd export PACKAGE.MODULE:CLASS OUT.pt --tokens 128 --vocabulary 256
    gossipd export PACKAGE.MODULE:CLASS OUT.onnx --input 1,28,28 --checkpoint final.safetensors

Looks for the module in the current directory first. Its forward takes one batch (float32 of the
given shape, or int64 tokens) and returns one tensor. A method loss(self, outputs, targets) is
exported to TorchScript as well, for `kind = "model"` under [loss] of the job. Exit codes: 0
written; 1 cannot be exported, with the reason; 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from .checkpoint import CheckpointError, load

if TYPE_CHECKING:
    import torch

EXACT_INTEGER_MAX = 2**24  # the type that gossipd keeps integer buffers in
ONNX_OPSET = 17
Sample = Callable[[int], "torch.Tensor"]


class Unsupported(ValueError):
    """One sentence: what is unsupported, why, and what to do."""


def load_class(name: str) -> Any:
    """The class that PACKAGE.MODULE:CLASS names."""
    module_name, _, class_name = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        way_out = "write it as PACKAGE.MODULE:CLASS, to be found from this directory"
        # Of what is asked for itself the error names the module or a package around it.
        if isinstance(error, ImportError) and not f"{module_name}.".startswith(f"{error.name}."):
            way_out = f"install what {module_name} imports, or mend the import"
        raise Unsupported(f"{name}: {error}; {way_out}") from error


def check_tensors(model: "torch.nn.Module") -> None:
    """Raises Unsupported for a parameter or buffer that gossipd cannot train."""
    import torch

    parameters = dict(model.named_parameters())
    if not any(p.requires_grad for p in parameters.values()):
        raise Unsupported("the module has no parameters that can be trained")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise Unsupported(
                f"parameter '{name}' is of {parameter.dtype}; parameters must be float32: call"
                " .float()"
            )
        if not bool(torch.isfinite(parameter).all()):
            raise Unsupported(f"parameter '{name}' holds NaN or infinity")
    for name, buffer in model.named_buffers():
        if buffer.dtype.is_complex or (
            buffer.dtype.is_floating_point and buffer.dtype != torch.float32
        ):
            raise Unsupported(
                f"buffer '{name}' is of {buffer.dtype}; buffers may be float32, integers or"
                " booleans"
            )
        if (
            not buffer.dtype.is_floating_point
            and buffer.dtype != torch.bool
            and buffer.numel()
            and int(buffer.abs().max()) > EXACT_INTEGER_MAX
        ):
            raise Unsupported(
                f"buffer '{name}' holds integers beyond 2^24; keep it out of the module"
            )


def script(model: "torch.nn.Module") -> Any:
    """The module compiled by TorchScript, its loss() included."""
    import torch

    if callable(getattr(type(model), "loss", None)):
        kind: Any = type(model)
        torch.jit.export(kind.loss)
    try:
        return torch.jit.script(model)
    except Exception as error:  # the compiler raises many kinds of errors
        raise Unsupported(
            f"TorchScript cannot compile it: {error}\nAnnotate arguments that are not tensors, keep"
            " Python-only code (print of objects, numpy, *args, attributes of changing type) out"
            " of forward, or mark it @torch.jit.unused"
        ) from error


def forward(model: Any, batch: "torch.Tensor") -> Any:
    """What `model` gives for `batch`. Raises Unsupported where it takes no such batch."""
    try:
        return model(batch)
    except Exception as error:  # the module's own, or torch's of many kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise Unsupported(
            f"forward takes no batch of {list(batch.shape)}"
            f" ({lines[-1] if lines else type(error).__name__}); give the shape of one sample with"
            " --input, or --tokens and --vocabulary"
        ) from error


def check_training(model: Any, sample: Sample) -> Tuple[List[int], List[str]]:
    """Runs two batch sizes, since the last batch of a pass and DBS-SGD change it; then every
    parameter must have a gradient. Returns the shape that one sample gives and the parameters
    without a gradient.
    """
    import torch

    model.train()
    for batch in (2, 3):
        output = forward(model, sample(batch))
        if not isinstance(output, torch.Tensor):
            raise Unsupported(f"forward returns {type(output).__name__}; it must return one tensor")
        if output.dim() == 0 or output.shape[0] != batch:
            raise Unsupported(
                f"forward of {batch} samples returns {list(output.shape)}; the batch must come"
                " first"
            )
    output.float().pow(2).sum().backward()
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if len(unused) == sum(p.requires_grad for p in model.parameters()):
        raise Unsupported(
            "no parameter gets a gradient: does forward detach, or run under no_grad?"
        )
    return list(output.shape[1:]), unused


def write_whole(out: str, content: bytes) -> None:
    """Writes beside `out` first, so that no half file has its name, nor any other."""
    part = out + ".tmp"
    with open(part, "wb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, out)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(part)
            raise


def to_torchscript(
    model: "torch.nn.Module", out: str, sample: Sample
) -> Tuple[List[int], List[str]]:
    """Writes `model` as a TorchScript file for ``kind = "torchscript"`` of a job.

    Args:
        model: parameters and floating buffers of float32.
        out: the file; replaced as a whole.
        sample: makes a batch of that many samples, to try the module with.

    Returns:
        The shape that one sample gives, and the names of parameters that got no gradient.

    Raises Unsupported with the way out where gossipd could not train the module.
    """
    import torch

    check_tensors(model)
    scripted = script(model)
    clean = io.BytesIO()
    torch.jit.save(scripted, clean)  # before the trial, which changes running statistics
    shape, unused = check_training(scripted, sample)
    write_whole(out, clean.getvalue())
    return shape, unused


def to_onnx(model: "torch.nn.Module", out: str, sample: Sample) -> List[int]:
    """Writes `model`, as it infers, as an ONNX file whose batch is free; input ``input``, output
    ``output``. Returns the shape that one sample gives. Raises Unsupported where torch cannot.
    """
    import torch

    model.eval()
    example = sample(2)
    with torch.no_grad():
        shape = list(forward(model, example).shape[1:])
    written: Any = io.BytesIO()
    options: Any = {"dynamo": False} if torch.__version__ >= "2.5" else {}
    try:
        torch.onnx.export(
            model,
            (example,),
            written,
            input_names=["input"],
            output_names=["output"],
            dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
            opset_version=ONNX_OPSET,
            **options,
        )
    except Exception as error:  # the exporter raises many kinds of errors
        raise Unsupported(f"torch cannot write it as ONNX: {error}") from error
    write_whole(out, written.getvalue())
    return shape


def take_checkpoint(model: "torch.nn.Module", path: str) -> None:
    """Loads the checkpoint's tensors into `model`. It has tied ones once, and no constants: neither
    masks of infinities nor, from an attached loop, integers. Raises Unsupported for other gaps.
    """
    import torch

    try:
        given = load(path).state_dict()
        differs = model.load_state_dict(given, strict=False)
    except (OSError, CheckpointError, RuntimeError) as error:
        raise Unsupported(f"{path}: {error}") from error

    def place_of(tensor: "torch.Tensor") -> Tuple[int, int]:
        return tensor.data_ptr(), tensor.numel()

    own = model.state_dict(keep_vars=True)
    loaded = {place_of(own[name]) for name in given if name in own}

    def may_miss(tensor: "torch.Tensor") -> bool:
        if tensor.numel() == 0 or place_of(tensor) in loaded:
            return True
        if isinstance(tensor, torch.nn.Parameter):
            return False
        return not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all())

    lost = [name for name in differs.missing_keys if name not in own or not may_miss(own[name])]
    for words, names in (("lacks", lost), ("has what the module lacks:", differs.unexpected_keys)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise Unsupported(
                f"{path}: {words} {', '.join(names[:5])}{more}; make the module as it was trained"
                " (--arguments)"
            )


def sample_of(arguments: argparse.Namespace) -> Sample:
    import torch

    def sample(batch: int) -> "torch.Tensor":
        if arguments.tokens:
            return torch.randint(0, arguments.vocabulary, (batch, arguments.tokens))
        return torch.randn(batch, *arguments.input)

    return sample


def export(arguments: argparse.Namespace) -> None:
    import torch

    torch.manual_seed(arguments.seed)
    make = load_class(arguments.model)
    if not callable(make):
        raise Unsupported(
            f"{arguments.model} is a {type(make).__name__}; name a class of torch.nn.Module"
        )
    try:
        model = make(**arguments.arguments)
    except Exception as error:  # of the module's own code
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.arguments.items())
        raise Unsupported(
            f"{arguments.model}({given}) cannot be made: {type(error).__name__}: {error}; see"
            " --arguments"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise Unsupported(f"{arguments.model} is no torch.nn.Module")
    if arguments.checkpoint:
        take_checkpoint(model, arguments.checkpoint)
    unused: List[str] = []
    if arguments.out.endswith(".onnx"):
        shape = to_onnx(model, arguments.out, sample_of(arguments))
    else:
        shape, unused = to_torchscript(model, arguments.out, sample_of(arguments))
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(
        f"{arguments.out}: {os.path.getsize(arguments.out)} bytes, {parameters} trained"
        f" parameters, one sample gives {shape}"
        + (", has its own loss" if hasattr(model, "loss") else "")
    )
    for name in unused:
        print(f"note: '{name}' got no gradient: forward does not use it", file=sys.stderr)


def _json_object(text: str) -> Dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no JSON object; write one such as '{{\"classes\": 10}}'"
        )
    return read


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _shape(text: str) -> List[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape; write whole numbers such as 1,28,28"
        )
    return [int(part) for part in parts]


def parse(argv: Sequence[str], program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="PACKAGE.MODULE:CLASS")
    parser.add_argument("out", metavar="OUT.pt|OUT.onnx")
    parser.add_argument(
        "--arguments",
        type=_json_object,
        default={},
        metavar="JSON",
        help="of the constructor, as a JSON object",
    )
    parser.add_argument(
        "--input",
        type=_shape,
        metavar="SHAPE",
        help="of one sample: 1,28,28",
    )
    parser.add_argument(
        "--tokens", type=_count, metavar="LENGTH", help="of one sample that is a sequence of tokens"
    )
    parser.add_argument("--vocabulary", type=_count, default=256, metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters")
    parser.add_argument("--checkpoint", metavar="FILE", help="take the parameters from here")
    arguments = parser.parse_args(argv)
    if (arguments.input is None) == (arguments.tokens is None):
        parser.error("give either --input SHAPE or --tokens LENGTH")
    return arguments


def main(argv: Optional[Sequence[str]] = None, program: str = "gossipd export") -> int:
    """The command; returns its exit code."""
    arguments = parse(sys.argv[1:] if argv is None else argv, program)
    try:
        export(arguments)
    except ImportError as error:
        print(f"{program}: {error}; install torch", file=sys.stderr)
        return 1
    except (Unsupported, TypeError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    return 0
