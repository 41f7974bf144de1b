"""What every attached loop has: counters, the cluster's progress, the look between two steps."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from . import wire
from .landing import POLL_S, Landing
from .looking import samples_between
from .sampler import SharedSampler
from .session import DEADLINE_S, NotAttached, Session
from .sockets import default_socket
from .words import whole

# Looks may take this share of the loop's time, so the dearer one is the rarer they are.
LOOK_SHARE = 0.0075
LOOK_INTERVAL_MAX_S = 5.0
LOGS_WITHOUT_STEP = 100  # calls of log(); more are said
LOOK_COST_KEPT = 0.8  # of the mean cost, from one look to the next
WAIT_S = 60.0
SETTLE_S = 60.0
SETTLE_POLL_S = 0.05
HELD_LOOKS = 4  # in a row, of up to half a second, before it is said why the loop stands still

HELD = (
    "gossipd: the daemon holds this loop: the job is paused (gossipctl resume goes on), or this"
    " node has left (gossipctl join brings it back), or no model of the cluster is here yet"
)
Finished = Callable[[], bool]

log = logging.getLogger("gossipd")
_attachments: "weakref.WeakSet[Attachment]" = weakref.WeakSet()


class Model:
    """The flat model that is shared: what a kind of tensors has to offer. Trainer's thread."""

    segments: List[wire.Segment]

    def apply(self, update: Any, ranges: List[Tuple[int, int]], replace: bool) -> None:
        """Adds ``update[first:first + floats]`` of each range, or takes it in place of what is
        there. When it replaces, the optimiser's moments begin anew.
        """
        raise NotImplementedError

    def copy(self, snapshot: Any) -> None:
        """Writes all of it into `snapshot`, float32 [P]."""
        raise NotImplementedError

    def finite(self) -> bool:
        """Whether it holds neither NaN nor infinity."""
        raise NotImplementedError

    def settled(self) -> Optional[Finished]:
        """None: `apply` and `copy` are done. Otherwise what says so later, asked from another
        thread; then the shared memory may be written by others.
        """
        return None


class Attachment:
    """A training loop that takes part in a cluster. Made by `gossipd.attach`.

    Attributes:
        steps, samples: of this process so far.
        progress: of the cluster's budget of samples, 0 ... 1.
        rate_factor: the job's schedule, 0 ... 1: what to multiply the learning rate with.
        finished: the budget is spent; end the loop.
        settled: after `finished`: the model is the cluster's final one.
        replaced: the newest look put the cluster's model in place of this one; optimisers that
            gossipd does not know must begin anew.
        members: of the cluster, this one included; trainers: those of them that train now.
    """

    def __init__(
        self, model: Model, samples_per_step: int, path: Optional[str], connect: bool = True
    ) -> None:
        self.steps = self.samples = 0
        self.progress, self.rate_factor = 0.0, 1.0
        self.finished = self.settled = self.paused = self.replaced = False
        self.place, self.trainers, self.members = 0, 1, 1
        self.cluster_samples = self.budget_samples = 0
        self._model = model
        self._samples_per_step = samples_per_step
        self._logs_samples = self._logs_come_first = False  # ... before the step that they are of
        self._pending_samples = 0
        self._told_samples = False  # by log(), since the last step
        self._told = (0, 0)
        self._loss: Any = None
        self._urgent_looks = 0  # so many more since it was not finite
        self._rate = 0.0
        self._detached = False
        self._logs_since_step, self._logs_max = 0, LOGS_WITHOUT_STEP
        self._replacements = 0
        self._resumed_at = time.perf_counter()
        self._looked_at_steps = 0
        self._announce_s = self._look_cost_s = self._look_interval_s = 0.0
        self._asked_samples = 0  # what the last STEP has told
        self._look_samples: float = math.inf  # of this process, at which a look is due
        self._landing: Optional[Landing] = None  # of the last GO, whose DONE follows it
        self._held_looks = 0
        self._has_shared = False  # a model of the cluster, or this one with it
        self._sampler: Optional[SharedSampler] = None
        self._sampler_state: Any = None  # loaded, for the sampler that is made next
        self._session: Optional[Session] = None
        if connect:
            socket = path or default_socket(os.environ.get("GOSSIPD_SOCKET"))
            self._session = Session(socket, model.segments, samples_per_step, lambda: self._told)
        _attachments.add(self)
        atexit.register(_end, weakref.ref(self), os.getpid())

    # ---- what the loop calls ----

    @property
    def attached(self) -> bool:
        """Whether a daemon has this loop now; otherwise it trains alone."""
        return self._session is not None and self._session.attached

    @property
    def refusal(self) -> Optional[NotAttached]:
        """Why no daemon will take this loop any more."""
        return self._session.refused if self._session else None

    def log(
        self, loss: Any = None, samples: Optional[int] = None, learning_rate: Optional[float] = None
    ) -> None:
        """Records the loss and the number of samples of the newest step or micro-batch.

        Args:
            loss: mean over its samples; a number, or a tensor of one element, whose graph is freed.
            samples: the number of samples; a step without counts `samples_per_step`, so of several
                micro-batches give it for all or for none. A skipped step's count with the next.
            learning_rate: of the next step; needed only without an optimiser.
        """
        if loss is not None:
            self._loss = self._kept(loss)
            if isinstance(self._loss, float) and not math.isfinite(self._loss):  # on no device
                self._urgent_looks = 2  # one may be announced just before the step of that loss
        if learning_rate is not None:
            self._rate = float(learning_rate)
        self._logs_since_step += 1
        if self._logs_since_step > self._logs_max:
            self._warn_of_uncounted_steps()
        if samples is None:
            return
        samples = whole("samples", samples)
        if not 0 <= samples <= wire.STEP_SAMPLES_MAX:
            raise ValueError(f"a step has no {samples} samples, but 0 ... 2^20")
        if not self._logs_samples:
            self._logs_samples = True
            if self.steps and not self._logs_come_first:  # it is of a step that was estimated
                self._pending_samples -= self._samples_per_step
        self._pending_samples += samples
        self._told_samples = True

    def report(
        self,
        *,
        loss: float,
        accuracy: Optional[float] = None,
        samples: int = 0,
        seconds: float = 0.0,
    ) -> bool:
        """Publishes an evaluation: mean loss, accuracy (0 ... 1) and number of held-out samples,
        and how long it took. False where no daemon takes it.
        """
        loss = float(loss)
        share = math.nan if accuracy is None else float(accuracy)
        if not math.isfinite(loss) or (accuracy is not None and not 0 <= share <= 1):
            raise ValueError(f"loss {loss} and accuracy {accuracy} are no evaluation")
        packet = wire.report(share, loss, int(samples), self.steps, max(0.0, float(seconds)))
        return self._session is not None and self._session.send(packet)

    def sampler(self, n: int, seed: int = 0) -> SharedSampler:
        """The indices of this node's part of a set of `n` samples that all nodes have; under
        DistributedDataParallel those of this process's part of it.
        """
        ours = self._rank_and_size()
        sampler = SharedSampler(n, seed, self._where, *ours, self._trained_on)
        if self._sampler_state:
            sampler.load_state_dict(self._sampler_state)
        self._sampler, self._sampler_state = sampler, None
        return sampler

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint of the loop must keep beside model and optimiser: where the training
        stands in the sampler's order, by the samples of its steps, and for people steps, samples
        and progress.
        """
        place = self._sampler_state if self._sampler is None else self._sampler.state_dict()
        words = {"steps": self.steps, "samples": self.samples, "progress": self.progress}
        return {**words, "sampler": place}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Puts the sampler back; counters begin anew, since the daemon has counted before."""
        if self._sampler is None:
            self._sampler_state = state.get("sampler")
        elif state.get("sampler"):
            self._sampler.load_state_dict(state["sampler"])

    def detach(self, settle_s: float = SETTLE_S) -> None:
        """Ends: tells the last steps and closes. Where the job has finished, first waits up to
        `settle_s` seconds for the cluster's final model. Training may go on alone afterwards.
        """
        if self._detached:
            return
        try:
            self._commit_samples()
            if self._landing is not None:
                self._landing.has_ended(DEADLINE_S)
            self._settle(settle_s)
        finally:
            self._close()

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            return self.detach()
        try:
            self.detach(0.0)
        except Exception as another:  # the loop's own error is the one to be seen
            log.warning("gossipd: the last look has failed, too: %r", another)

    def __repr__(self) -> str:
        state = "detached" if self._detached else "attached" if self.attached else "alone"
        return f"<gossipd {state}: step {self.steps}, progress {self.progress:.3f}>"

    # ---- what a kind of tensors overrides ----

    def _kept(self, loss: Any) -> Any:
        if not hasattr(loss, "__float__") or getattr(loss, "size", 1) != 1:
            raise TypeError(f"loss is {loss!r:.100}; give one number")
        return loss.reshape(()) if getattr(loss, "ndim", 0) else loss  # without waiting for it

    def _loss_number(self) -> float:
        """The newest loss that is known without waiting; NaN before there is one."""
        return math.nan if self._loss is None else float(self._loss)

    def _learning_rate(self) -> float:
        return self._rate

    def _settle(self, settle_s: float) -> None:
        """Tells the last steps; where the job has finished, waits for the final model."""
        end = time.monotonic() + settle_s
        self._look_once()
        while self._awaits_final_model(end):
            time.sleep(SETTLE_POLL_S)
            self._look_once()

    def _awaits_final_model(self, end: float) -> bool:
        unsettled = self.finished and not self.settled
        return unsettled and self.attached and time.monotonic() < end

    def _wait_attached(self, session: Session, wait_s: float) -> None:
        session.wait_attached(wait_s)

    def _rank_and_size(self) -> Tuple[int, int]:
        """Of the processes that train this model together."""
        return 0, 1

    # ---- between two steps ----

    def _begin(self, wait_s: float) -> None:
        """Waits for the daemon, then takes the cluster's model where there is one."""
        if self._session is not None:
            self._wait_attached(self._session, wait_s)
        self._resumed_at = time.perf_counter()
        self._look_until_free()
        if self.refusal:
            raise self.refusal

    def _commit_samples(self) -> None:
        self.samples += self._pending_samples
        self._pending_samples, self._told_samples = 0, False

    def _made_step(self) -> None:
        """After every step of the optimiser: counts it, and looks for what the daemon has."""
        if self._detached:
            return
        self.steps += 1
        if self.steps == 1:
            self._logs_come_first = self._logs_since_step > 0
        if self._logs_since_step > 1:  # one for each micro-batch
            self._logs_max = max(self._logs_max, 4 * self._logs_since_step)
        self._logs_since_step = 0
        if self._told_samples:
            self._commit_samples()
        else:
            self.samples += self._samples_per_step
        if self._is_time():
            self._look_until_free()

    def _warn_of_uncounted_steps(self) -> None:
        if not self._detached:
            log.warning(
                "gossipd: %d calls of log() since step %d, the newest that was counted; steps of"
                " another optimiser than the attached one count for nothing: detach() and attach"
                " that one; with as many micro-batches to a step all is well",
                self._logs_since_step,
                self.steps,
            )
        self._logs_max *= 10

    def _is_time(self) -> bool:
        """Whether a look would stay within its share of the loop's time, or has begun."""
        if self._session is not None and self._session.announced:
            return True
        if self.samples >= self._look_samples or self._urgent_looks:
            return True
        return time.perf_counter() - self._resumed_at >= self._look_interval_s

    def _announce_look(self) -> None:
        """Just before a step: where a look is due after it, lets the daemon prepare its answer."""
        session = self._session
        if self._detached or session is None or not self._look_interval_s or not self._is_time():
            return
        began = time.perf_counter()
        if self._is_settled(session):
            session.announce(self._step_packet_ahead)
        self._announce_s = time.perf_counter() - began

    def _look_until_free(self) -> None:
        """Looks once, and again for as long as the daemon has paused this loop."""
        self.replaced = False
        began = time.perf_counter()
        came = self._look_once()
        if came and self.steps:
            self._learn_cost(time.perf_counter() - began + self._announce_s)
        self._announce_s = 0.0
        while came and self.paused and not self.finished:
            came = self._look_once()  # the daemon takes its time to answer
        self._mark_look()

    def _learn_cost(self, seconds: float) -> None:
        kept = LOOK_COST_KEPT if self._look_cost_s else 0.0
        self._look_cost_s = kept * self._look_cost_s + (1 - kept) * seconds
        self._look_interval_s = min(self._look_cost_s / LOOK_SHARE, LOOK_INTERVAL_MAX_S)

    def _mark_look(self) -> None:
        self._resumed_at = time.perf_counter()
        self._looked_at_steps = self.steps

    def _look_once(self) -> bool:
        """One STEP and, where it came, its GO. Whether it came."""
        session = self._session
        if session is None or not self._is_settled(session):
            return False
        go = session.look(self._step_packet)
        if go is None:
            return False
        self._take_in(go)
        if go.wants_done:
            try:
                self._carry_out(session, go)
            except BaseException as error:
                session.lose(error)  # half of it may be in the model: the whole comes anew
                raise
        return True

    def _step_packet_ahead(self, sequence: int) -> bytes:
        return self._step_packet(sequence, ahead=True)

    def _step_packet(self, sequence: int, ahead: bool = False) -> bytes:
        """`ahead`: the next step is almost made, and has taken its time, but does not count yet."""
        loss = self._loss_number()
        self._urgent_looks = max(0, self._urgent_looks - 1)
        # A loss may be infinite while the model is not, so ask the model.
        suspect = self._loss is not None and not math.isfinite(loss)
        finite = not suspect or self._model.finite()
        self._told = self._counters()
        self._asked_samples = self._told[1]
        made = self.steps - self._looked_at_steps
        timed = made + 1 if ahead else made
        seconds = (time.perf_counter() - self._resumed_at) / timed if made else 0.0
        rate = self._learning_rate()
        return wire.step(
            sequence,
            *self._told,
            loss,
            rate if math.isfinite(rate) and rate > 0 else 0.0,
            seconds,
            finite,
        )

    def _counters(self) -> Tuple[int, int]:
        return self.steps, max(self.samples, self._told[1])  # an estimate may have been too high

    def _carry_out(self, session: Session, go: wire.Go) -> None:
        memory = session.memory
        self._told = self._counters()  # a step may have been made since STEP
        if go.flags & (wire.ADD | wire.REPLACE):
            replace = bool(go.flags & wire.REPLACE)
            self._model.apply(memory.update, go.ranges, replace)
            self.replaced = self.replaced or replace
            if replace:
                self._on_replaced(first=go.sequence == 1)
        if go.flags & wire.COPY:
            self._model.copy(memory.snapshots[go.snapshot])  # the daemon finds what is not finite
        later = self._model.settled()
        if not self._has_shared and go.flags & (wire.COPY | wire.REPLACE) == wire.COPY:
            while later is not None and not later():
                time.sleep(POLL_S)
            later = None
            self._check_first_model(session, memory.snapshots[go.snapshot])
        self._has_shared = True
        if later is None:
            session.done(go, self._told)
            return
        has_landed, say_done = later, session.done_later(go, self._told)
        self._landing = Landing(lambda: has_landed() and say_done())

    def _on_replaced(self, first: bool) -> None:
        """`first`: by the first GO of a connection, which is how attaching anew ends."""
        self._loss, self._urgent_looks = None, 0  # of the other model
        if not self._has_shared or first:
            return
        self._replacements += 1
        if self._replacements & (self._replacements - 1) == 0:  # ever more seldom
            log.warning(
                "gossipd: the daemon has put another model in place of this loop's, as it does"
                " where that has jumped or is not finite (%d times so far): look at the learning"
                " rate and the data; the daemon's log says what it was (step-taken-back)",
                self._replacements,
            )

    def _check_first_model(self, session: Session, model: Any) -> None:
        """The cluster is to begin with `model`: ValueError if it is not finite."""
        first = 0
        for segment in self._model.segments:
            if not np.isfinite(model[first : first + segment.floats]).all():
                session.close()
                raise ValueError(
                    f"the cluster would begin with this model, but '{segment.name}' holds NaN or"
                    " infinity (as float32): initialise or load every parameter before attach"
                )
            first += segment.floats

    def _is_settled(self, session: Session) -> bool:
        """Whether the DONE of the last GO is on its way; waits for it while no step may be made."""
        landing = self._landing
        if landing is None:
            return True
        if not landing.has_ended(DEADLINE_S if self.paused or self.finished else 0.0):
            return False
        self._landing = None
        if landing.error is not None:
            session.lose(landing.error)
            raise landing.error
        return True

    def _take_in(self, go: wire.Go) -> None:
        self.progress, self.rate_factor = go.progress, go.rate_factor
        self.cluster_samples, self.budget_samples = go.cluster_samples, go.budget_samples
        self.place, self.trainers, self.members = go.place, go.trainers, go.members
        self._look_samples = self._asked_samples + samples_between(go)
        self.paused = bool(go.flags & wire.PAUSED)
        self.finished = bool(go.flags & wire.FINISHED)
        self.settled = bool(go.flags & wire.SETTLED)
        self._held_looks = self._held_looks + 1 if self.paused and not self.finished else 0
        if self._held_looks == HELD_LOOKS:
            log.warning(HELD)

    def _trained_on(self) -> Optional[int]:
        return None if self._detached else self.samples + self._pending_samples

    def _where(self) -> Tuple[int, int, int]:
        return self.place, self.trainers, self.cluster_samples

    def _close(self) -> None:
        if self._sampler is not None:
            self._sampler.take_off()
        self._detached = True
        if self._session is None:
            return
        try:
            self._session.send(wire.detach())
        finally:
            self._session.close()


def attachments() -> List[Attachment]:
    """Those of this process that have not been detached."""
    return [attachment for attachment in list(_attachments) if not attachment._detached]


def _end(attachment: "weakref.ReferenceType[Attachment]", process: int) -> None:
    """At the interpreter's end: the daemon should hear of it in order. Not from a forked child."""
    alive = attachment()
    if alive is not None and process == os.getpid():
        alive.detach(0.0)
