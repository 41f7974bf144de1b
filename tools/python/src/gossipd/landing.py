"""Waits, beside the training's thread, for what a device still copies into the shared memory."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

POLL_S = 0.0005


class Landing:
    """Calls `attempt` in a thread of its own, until that returns true or raises.

    Attributes:
        error: what it raised, once it has ended.
    """

    def __init__(self, attempt: Callable[[], bool]) -> None:
        self.error: Optional[Exception] = None
        self._attempt = attempt
        self._thread = threading.Thread(target=self._run, name="gossipd-landing", daemon=True)
        self._thread.start()

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Waits up to `wait_s` seconds for the end; a forked child has no such thread any more."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._attempt():
                time.sleep(POLL_S)
        except Exception as error:
            self.error = error
