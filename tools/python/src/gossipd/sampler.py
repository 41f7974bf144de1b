"""Which samples of a set this node draws, where all nodes have the same set and share it out."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, Optional, Tuple

import numpy as np

from .words import whole

SAMPLES_MAX = 2**32  # whose order takes 32 GiB
AHEAD_MAX = 2**20  # draws that are not trained on yet; of more the first are taken for trained
Place = Callable[[], Tuple[int, int, int]]  # place, trainers, the cluster's samples
Counted = Callable[[], Optional[int]]  # this node's samples so far; None: nobody counts any more


class SharedSampler:
    """Indices of a set of `n` samples, of which the members that train take turns.

    All members walk one order, a new permutation in each pass; the k-th place of it is drawn by the
    member whose place is k modulo the number of members that train. So with steady members every
    pass visits each sample once, on one node. A member that joins begins where the cluster is.
    When members come or go the places move, and what lies between two members' positions then is
    visited twice or left to the next pass.

    Processes that train one model together share out what their node draws: of each `size` indices
    one to each, and none where a pass ends with fewer, so that all make as many steps. They must
    draw in step with each other, and nothing else may divide the set among them.

    Works as the ``sampler`` of ``torch.utils.data.DataLoader``, and as a plain iterable: one
    iteration is the rest of one pass.

    A data loader's workers are given indices ahead of the training. `state_dict` says where the
    training stands, as far as its samples are counted: one for each index that is drawn. When an
    iteration begins, all that was drawn before is taken for trained.

    Args:
        n: samples of the set, the same on all nodes.
        seed: of the order, the same on all nodes.
        place: gives this node's place, the number of members that train and the cluster's samples.
        rank, size: of this process and of the group that trains one model together on this node.
        counted: gives the samples that this node has trained on.
    """

    def __init__(
        self,
        n: int,
        seed: int,
        place: Place,
        rank: int = 0,
        size: int = 1,
        counted: Counted = lambda: None,
    ) -> None:
        self.n, self.seed = whole("n", n), whole("seed", seed)
        if not 0 < self.n <= SAMPLES_MAX:
            raise ValueError(f"a set of {n} samples cannot be divided; give at least 1, up to 2^32")
        if self.n < size:
            raise ValueError(f"{size} processes cannot share {self.n} samples; start fewer")
        self._place = place
        self._rank, self._size = rank, size
        self._pass = -1  # where the cluster is, when the first index is drawn
        self._position = 0
        self._counted = counted
        self._trained = (-1, 0)  # pass and position
        self._next_trained = 0  # what `counted` gives when the next of these is trained on
        self._ahead: Deque[Tuple[int, int]] = deque()  # after each draw that comes after `_trained`

    def __len__(self) -> int:
        """About how many indices a whole pass has for this process: the first one of a node that
        was attached in the middle of a pass has fewer.
        """
        return -(-self.n // max(1, self._place()[1])) // self._size

    def __iter__(self) -> Iterator[int]:
        if self._pass < 0:
            self._pass, self._position = divmod(self._place()[2], self.n)
        self._begin_trail()
        order = self._order(self._pass)
        while True:
            # All of the group's, since the node's place may be another at the next draw.
            drawn = [self._next_own() for _ in range(self._size)]
            if drawn[-1] >= self.n:
                break
            self._ahead.append((self._pass, self._position))
            self.take_off()
            if self._counted() is None:
                self._ahead.clear()
            yield int(order[drawn[self._rank]])
        self._pass, self._position = self._pass + 1, 0

    def _next_own(self) -> int:
        """The next position of this node; `n` or beyond at the end of a pass."""
        place, trainers, _ = self._place()
        own = self._position + (place - self._position) % trainers
        self._position = own + 1
        return own

    def _begin_trail(self) -> None:
        self._ahead.clear()
        self._trained = (self._pass, self._position)
        self._next_trained = (self._counted() or 0) + self._size

    def take_off(self) -> None:
        """From those that are ahead of the training what it has come to; for a last time just
        before nobody counts any more.
        """
        counted = self._counted() or 0
        while self._ahead and (self._next_trained <= counted or len(self._ahead) > AHEAD_MAX):
            self._trained = self._ahead.popleft()
            self._next_trained += self._size

    def _order(self, number: int) -> "np.ndarray[Any, Any]":
        # Of NumPy's generators only this one promises the same numbers in all releases.
        return np.random.RandomState([self.seed % 2**32, number % 2**32]).permutation(self.n)

    def state_dict(self) -> Dict[str, int]:
        """Where the training stands: for `load_state_dict` of one of the same set and seed."""
        self.take_off()
        place = self._trained if self._ahead else (self._pass, self._position)
        return {"n": self.n, "seed": self.seed, "pass": place[0], "position": place[1]}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Goes on where `state` was taken. ValueError if that was of another set or seed."""
        if (state["n"], state["seed"]) != (self.n, self.seed):
            raise ValueError(
                f"the state is of a set of {state['n']} samples with seed {state['seed']}, this is"
                f" one of {self.n} with seed {self.seed}"
            )
        self._pass, self._position = state["pass"], state["position"]
        self._begin_trail()
