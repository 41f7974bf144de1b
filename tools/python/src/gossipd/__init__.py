"""gossipd for Python: lets a training loop of your own take part in a cluster without a server.

    g = gossipd.attach(model, optimizer, samples_per_step=64)   # PyTorch
    params = g.step(params, loss=l, samples=n)                  # NumPy and JAX: attach(params)

Beside that: `Client` asks a daemon over REST, `load` reads its checkpoints.
"""

from .attaching import attach
from .attachment import Attachment, attachments
from .checkpoint import Checkpoint, CheckpointError, load
from .client import Client, NoDaemon, Refused
from .sampler import SharedSampler
from .session import NotAttached

__version__ = "0.1.0"
__all__ = [
    "Attachment",
    "Checkpoint",
    "CheckpointError",
    "Client",
    "NoDaemon",
    "NotAttached",
    "Refused",
    "SharedSampler",
    "attach",
    "attachments",
    "load",
]
