"""Hugging Face: ``Trainer(..., callbacks=[GossipdCallback()])``. Needs transformers and torch.

The callback attaches when training begins, counts the optimiser's steps, ends the training when the
cluster's budget is spent, and publishes evaluations. With several processes (torchrun, accelerate)
each has the callback and rank 0 is attached. DeepSpeed and FSDP split the model and are refused.
So is ``load_best_model_at_end``: the Trainer puts an older model in place before it says that the
training ends, and the cluster would get that one as this box's newest.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from transformers import TrainerCallback

from ..attaching import attach
from ..attachment import WAIT_S
from ..torch_attachment import TorchAttachment
from ..torch_model import shared_tensors
from .evaluations import publish


class GossipdCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches a ``Trainer`` to the gossipd of this box.

    Args:
        samples_per_step: samples of one optimiser step on this box; by default batch size times
            accumulation steps times processes, as the Trainer's arguments say.
        socket, every, wait_s: see `gossipd.attach`.

    Attributes:
        attachment: the `Attachment` while it trains, else None.
    """

    def __init__(
        self,
        samples_per_step: Optional[int] = None,
        *,
        socket: Optional[str] = None,
        every: int = 1,
        wait_s: float = WAIT_S,
    ) -> None:
        self.attachment: Optional[TorchAttachment] = None
        self._samples_per_step = samples_per_step
        self._final: List[Tuple[torch.Tensor, torch.Tensor]] = []  # of a job that had ended before
        self._options: Dict[str, Any] = {"socket": socket, "every": every, "wait_s": wait_s}

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        """Waits for the daemon and puts the cluster's model in place."""
        _check(args)
        samples = self._samples_per_step
        if samples is None:
            samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        if self.attachment is not None:  # of a training that an exception has ended
            self.attachment.detach(0.0)
        self._final = []
        self.attachment = attach(model, optimizer, samples_per_step=samples, **self._options)
        if self.attachment.finished:
            # Trainer makes a step before it can be stopped, which must not be in the final model.
            self.on_train_end(args, state, control)
            self._final = [(t, t.detach().clone()) for _, _, t in shared_tensors(model)]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Ends the training when the cluster's budget is spent."""
        with torch.no_grad():
            for tensor, value in self._final:
                tensor.copy_(value)
        if self._final or (self.attachment is not None and self.attachment.finished):
            control.should_training_stop = True
        return control

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **_: Any
    ) -> None:
        """Takes the loss that the Trainer logs, a mean over its logging steps."""
        if self.attachment is not None and logs and "loss" in logs:
            self.attachment.log(loss=float(logs["loss"]))

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Optional[Dict[str, Any]] = None,
        **_: Any,
    ) -> None:
        """Publishes the evaluation."""
        if self.attachment is not None and metrics and "eval_loss" in metrics:
            seconds = float(metrics.get("eval_runtime", 0.0))
            publish(
                self.attachment,
                metrics["eval_loss"],
                metrics.get("eval_accuracy"),
                samples=round(seconds * float(metrics.get("eval_samples_per_second", 0.0))),
                seconds=seconds,
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Takes the cluster's final model, where the job has finished, and detaches."""
        self._final = []
        if self.attachment is not None:
            self.attachment.detach()
            self.attachment = None


def _check(args: Any) -> None:
    """ValueError for what the Trainer would do to the model behind gossipd's back."""
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        raise ValueError(
            "DeepSpeed and FSDP split the model, and gossipd shares whole models: leave them"
            " off; several GPUs of a box work by torchrun"
        )
    if getattr(args, "load_best_model_at_end", False):
        raise ValueError(
            "load_best_model_at_end puts an older model in place just before the training ends, and"
            " gossipd would give it to the cluster as this box's newest: leave it off; after"
            " train() the path of that model is trainer.state.best_model_checkpoint"
        )
