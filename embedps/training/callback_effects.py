"""Does what callbacks ask for: scales the learning rates, stops the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embedps.training.callbacks import Callbacks, Tell


class CallbackEffects:
    """Gives events and new evaluations to the callbacks, and does what these ask for.

    Attributes:
      rate_factor: the learning rates are this factor of the config's.
      stopping: a callback has stopped the run.
    """

    def __init__(self, callbacks: Callbacks, set_dense_rate: Callable[[float], Any]) -> None:
        """Acts on the evaluations of earlier runs, without saying so.

        Args:
          set_dense_rate: sets the network's learning rate to a factor of the config's.
        """
        self._callbacks = callbacks
        self._set_dense_rate = set_dense_rate
        self.rate_factor = 1.0
        self._scheduled = 1.0
        self.stopping = False
        self.poll(say=lambda text: None)

    @property
    def reason(self) -> str | None:
        """Why a callback stopped the run; None if none did."""
        return self._callbacks.control.reason

    @property
    def last_step(self) -> int:
        """The step of the last evaluation; -1 before the first."""
        return self._callbacks.last_step

    def schedule(self, factor: float) -> None:
        """Sets the factor of the network's schedule, besides that of callbacks."""
        if factor != self._scheduled:
            self._scheduled = factor
            self._set_dense_rate(factor * self.rate_factor)

    def follow(self, set_dense_rate: Callable[[float], Any]) -> None:
        """Takes what sets the rate of a network that was made anew."""
        self._set_dense_rate = set_dense_rate
        self.set_rate_again()

    def set_rate_again(self) -> None:
        """Sets the network's learning rate once more: the variable that had it was lost."""
        self._set_dense_rate(self._scheduled * self.rate_factor)

    def poll(self, say: Callable[[str], None]) -> None:
        """Gives new evaluations to the callbacks; `say` shows what follows."""
        self._callbacks.poll()
        self.deliver(say)

    def tell(self, event: Tell) -> None:
        """Queues an event for `deliver`; for any thread."""
        self._callbacks.tell(event)

    def deliver(self, say: Callable[[str], None]) -> None:
        """Gives the events that were told to the callbacks; `say` shows what follows."""
        self._callbacks.deliver()
        control = self._callbacks.control
        if control.rate_factor != self.rate_factor:
            self.rate_factor = control.rate_factor
            self._set_dense_rate(self._scheduled * self.rate_factor)
            say(f"the learning rates are {self.rate_factor:g} of what was asked for, from here on")
        if control.reason is not None and not self.stopping:
            self.stopping = True
            say(f"the run stops: {control.reason}")
