"""Places each of a network's variables on the parameter server that holds the least.

TensorFlow's strategy places variables in turn. A network makes kernel, bias, kernel, bias. So with
2 servers, one would hold every kernel, and transfer nearly all of the network's bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class VariablePlacement:
    """Chooses a server for each variable when it is made."""

    def __init__(self, num_servers: int) -> None:
        self._num_servers = num_servers
        self._first: dict[str, Any] = {}  # maps each server to a variable on it
        self._floats: dict[str, int] = {}
        self._made: list[weakref.ref[Any]] = []

    def made_on(self, device: str) -> list[Any]:
        """Lists the variables of a server that are still in use."""
        made = (each() for each in self._made)
        return [v for v in made if v is not None and v.device == device]

    def create(self, next_creator: Callable[..., Any], **arguments: Any) -> Any:
        """Creates a variable; for tf.variable_creator_scope within the strategy's scope."""
        if arguments.get("colocate_with") is not None:  # an optimizer slot, with its variable
            variable = next_creator(**arguments)
            self._made.append(weakref.ref(variable))
            return variable
        # Until each server has a variable, the strategy picks one that has none.
        if len(self._first) == self._num_servers:
            arguments["colocate_with"] = self._first[
                min(self._floats, key=self._floats.__getitem__)
            ]
        variable = next_creator(**arguments)
        self._made.append(weakref.ref(variable))
        self._first.setdefault(variable.device, variable)
        floats = variable.shape.num_elements()
        self._floats[variable.device] = self._floats.get(variable.device, 0) + floats
        return variable
