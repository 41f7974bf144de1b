"""A network of every kind of shared tensors, attached to a daemon made of the protocol's page."""

import numpy as np
import pytest

import gossipd

torch = pytest.importorskip("torch")


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2, bias=False)
    )


FLOATS = 3 * 4 + 4 + 4 + 4 + 8 + 4 + 4  # the two last are running statistics


def train(model, optimizer, batches=1):
    for _ in range(batches):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 3)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss


def flat(model):
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    names += ["1.running_mean", "1.running_var"]
    state = model.state_dict()
    return np.concatenate([state[n].numpy().reshape(-1) for n in names])


def attached(daemon, answers=(), optimizer=None, **options):
    """Model, optimiser and attachment; the first of `answers` answers the first look."""
    daemon.answers = list(answers)
    model = network()
    optimizer = (optimizer or (lambda p: torch.optim.SGD(p, 0.1)))(model.parameters())
    options = {"samples_per_step": 5, **options}
    g = gossipd.attach(model, optimizer, **options)
    looks_at_each_step(g)
    return model, optimizer, g


def looks_at_each_step(g, ahead=False):
    """However short the steps are; `ahead`: STEP is sent before a step, and after it otherwise."""
    g._is_time = lambda: True
    g._ahead = ahead
    g._look_interval_s = 1.0


def scaler_of():
    try:
        return torch.amp.GradScaler("cpu", init_scale=4.0)
    except (AttributeError, TypeError):
        pytest.skip("this torch scales gradients on GPUs only")
