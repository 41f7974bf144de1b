"""In which order the traffic with a GPU is begun, on a box that needs none."""

import contextlib
import types

import pytest

torch = pytest.importorskip("torch")
dispatch = pytest.importorskip("torch.utils._python_dispatch")
torch_device = pytest.importorskip("gossipd.torch_device")


class Kernels(dispatch.TorchDispatchMode):
    """Notes the name of each kernel."""

    def __init__(self, begun):
        super().__init__()
        self._begun = begun

    def __torch_dispatch__(self, operation, kinds, arguments=(), keywords=None):
        self._begun.append(operation.overloadpacket.__name__)
        return operation(*arguments, **(keywords or {}))


@pytest.fixture
def begun(monkeypatch):
    """What has been begun so far: kernels, and waits of a stream for another."""
    found = []
    made = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: made(*a, **k))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the training's")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    stream = types.SimpleNamespace(wait_stream=lambda other: found.append("wait"))
    event = types.SimpleNamespace(record=lambda stream: None, query=lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    return found


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_a_loss_is_fetched_after_the_kernel_that_makes_it_float32(begun, kind):
    traffic = torch_device.DeviceTraffic(torch.device("cpu"))
    with Kernels(begun):
        assert traffic.scalar(torch.tensor(2.5, dtype=kind), 1.0) == 1.0
    assert begun.index("_to_copy") < begun.index("wait") < begun.index("copy_")
    assert traffic.scalar(torch.tensor(0.0), 1.0) == 2.5


def test_a_tensor_is_copied_to_the_host_as_it_was_when_that_was_begun(begun):
    traffic = torch_device.DeviceTraffic(torch.device("cpu"))
    tensor, target = torch.full((2, 2), 3.0), torch.zeros(4)
    with Kernels(begun):
        traffic.to_host(tensor, target)
    assert begun.index("_to_copy") < begun.index("wait") < begun.index("copy_")
    tensor.zero_()
    assert traffic.mark()() and target.tolist() == [3.0] * 4
