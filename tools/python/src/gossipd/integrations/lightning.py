"""Lightning: ``Trainer(callbacks=[GossipdCallback(samples_per_step=64)])``. Needs lightning (or
pytorch_lightning) and torch.

The callback attaches when training begins and counts the steps of the module's one optimiser; with
automatic or manual optimisation. It ends the fit when the cluster's budget is spent.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback  # type: ignore[assignment]

from ..attaching import attach
from ..attachment import WAIT_S
from ..torch_attachment import TorchAttachment
from .evaluations import publish


class GossipdCallback(Callback):  # type: ignore[misc]
    """Attaches a Lightning ``Trainer`` to the gossipd of this box.

    Args:
        samples_per_step: samples of one optimiser step on this box, all micro-batches and processes
            together.
        socket, every, wait_s: see `gossipd.attach`.

    Attributes:
        attachment: the `Attachment` while it trains, else None.
    """

    def __init__(
        self,
        samples_per_step: int,
        *,
        socket: Optional[str] = None,
        every: int = 1,
        wait_s: float = WAIT_S,
    ) -> None:
        self.attachment: Optional[TorchAttachment] = None
        self._samples_per_step = samples_per_step
        self._options: Dict[str, Any] = {"socket": socket, "every": every, "wait_s": wait_s}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Waits for the daemon and puts the cluster's model in place."""
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"the module has {len(trainer.optimizers)} optimisers, and a step of gossipd is one"
                " of one optimiser: use one with several parameter groups"
            )
        self.attachment = attach(
            pl_module,
            trainer.optimizers[0],
            samples_per_step=self._samples_per_step,
            **self._options,
        )
        if self.attachment.finished:
            trainer.should_stop = True  # before a step of its own

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Takes the loss; ends the training when the cluster's budget is spent."""
        if self.attachment is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            # With automatic optimisation Lightning has divided it by the micro-batches of a step.
            parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self.attachment.log(loss=loss * parts)
        if self.attachment.finished:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Publishes ``val_loss`` and ``val_accuracy`` (or ``val_acc``), where they are logged."""
        figures = trainer.callback_metrics
        if self.attachment is None or "val_loss" not in figures:
            return
        accuracy = figures.get("val_accuracy", figures.get("val_acc"))
        publish(self.attachment, figures["val_loss"], accuracy)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Takes the cluster's final model, where the job has finished, and detaches."""
        self._end(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Detaches at once."""
        self._end(exception)

    def _end(self, error: Optional[BaseException]) -> None:
        attachment, self.attachment = self.attachment, None
        if attachment is not None:
            attachment.__exit__(type(error) if error else None, error, None)
