#!/usr/bin/env python3
"""Exports a PyTorch module to a TorchScript file that gossipd trains, or says why it cannot.

    export_model.py PACKAGE.MODULE:CLASS OUT.pt --input 1,28,28 [--arguments '{"classes": 10}']
    export_model.py PACKAGE.MODULE:CLASS OUT.pt --tokens 128 --vocabulary 256

Looks for the module in the current directory first. Its forward takes one batch (float32 of the
given shape, or int64 tokens) and returns one tensor. A method loss(self, outputs, targets) is
exported as well, for `kind = "model"` under [loss] of the job. Needs only torch. Exit codes: 0
written; 1 cannot be trained, with the reason; 2 usage.
"""

import argparse
import importlib
import io
import json
import os
import sys

import torch

EXACT_INTEGER_MAX = 2**24  # the type that gossipd keeps integer buffers in


class Unsupported(Exception):
    """One sentence: what is unsupported, why, and what to do."""


def load_class(name):
    module_name, _, class_name = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise Unsupported(
            f"{name}: {error}; write it as PACKAGE.MODULE:CLASS, to be found from this directory"
        ) from error


def check_tensors(model):
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


def script(model):
    if callable(getattr(type(model), "loss", None)):
        torch.jit.export(type(model).loss)
    try:
        return torch.jit.script(model)
    except Exception as error:  # the compiler raises many kinds of errors
        raise Unsupported(
            f"TorchScript cannot compile it: {error}\nAnnotate arguments that are not tensors, keep"
            " Python-only code (print of objects, numpy, *args, attributes of changing type) out"
            " of forward, or mark it @torch.jit.unused"
        ) from error


def sample(arguments, batch):
    if arguments.tokens:
        return torch.randint(0, arguments.vocabulary, (batch, arguments.tokens), dtype=torch.int64)
    return torch.randn(batch, *arguments.input)


def check_training(model, arguments):
    """Runs two batch sizes, since the last batch of a pass and DBS-SGD change it; then every
    parameter must have a gradient.
    """
    model.train()
    for batch in (2, 3):
        output = model(sample(arguments, batch))
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


def export(arguments):
    torch.manual_seed(arguments.seed)
    model = load_class(arguments.model)(**arguments.arguments)
    if not isinstance(model, torch.nn.Module):
        raise Unsupported(f"{arguments.model} is no torch.nn.Module")
    check_tensors(model)
    scripted = script(model)
    clean = io.BytesIO()
    torch.jit.save(scripted, clean)  # before the trial, which changes running statistics
    shape, unused = check_training(scripted, arguments)
    with open(arguments.out + ".tmp", "wb") as file:
        file.write(clean.getvalue())
    os.replace(arguments.out + ".tmp", arguments.out)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(
        f"{arguments.out}: {len(clean.getvalue())} bytes, {parameters} trained parameters, one"
        f" sample gives {shape}" + (", has its own loss" if hasattr(scripted, "loss") else "")
    )
    for name in unused:
        print(f"note: '{name}' got no gradient: forward does not use it", file=sys.stderr)


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="PACKAGE.MODULE:CLASS")
    parser.add_argument("out", metavar="OUT.pt")
    parser.add_argument(
        "--arguments",
        type=json.loads,
        default={},
        metavar="JSON",
        help="of the constructor, as a JSON object",
    )
    parser.add_argument(
        "--input",
        type=lambda text: [int(n) for n in text.split(",")],
        metavar="SHAPE",
        help="of one sample: 1,28,28",
    )
    parser.add_argument(
        "--tokens", type=int, metavar="LENGTH", help="of one sample that is a sequence of tokens"
    )
    parser.add_argument("--vocabulary", type=int, default=256, metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters")
    arguments = parser.parse_args(argv)
    if (arguments.input is None) == (arguments.tokens is None):
        parser.error("give either --input SHAPE or --tokens LENGTH")
    return arguments


if __name__ == "__main__":
    try:
        export(parse(sys.argv[1:]))
    except Unsupported as error:
        print(f"export_model: {error}", file=sys.stderr)
        sys.exit(1)
