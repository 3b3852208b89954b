"""A ClusterCoordinator whose calls have callbacks, and may be bound to a worker."""

from __future__ import annotations

import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator, values

from embedps.console.lines import say
from embedps.errors import ClusterError, UsageError


class ScheduledValue(values.RemoteValueImpl):
    """The result of a scheduled call: a RemoteValue with callbacks."""

    def __init__(
        self,
        closure: Any,
        type_spec: Any,
        on_end: Callable[[ScheduledValue], None] = lambda value: None,
    ) -> None:
        super().__init__(closure, type_spec)
        self._end_lock = threading.Lock()
        self._has_ended = False
        self._callbacks: list[Callable[[ScheduledValue], None]] = []
        self._on_end = on_end

    def add_done_callback(self, callback: Callable[[ScheduledValue], None]) -> None:
        """Calls a function with this value when its call has ended; at once if it has.

        By then, `fetch` does not wait: it gives the result, or raises. The function runs on a
        worker's thread in this process, before `join` returns: it must wait for no other call. What
        it raises is printed, not passed on.
        """
        with self._end_lock:
            if not self._has_ended:
                self._callbacks.append(callback)
                _waiting.add(self)
                return
        _call(callback, self)

    def done(self) -> bool:
        """Tells whether the call has ended."""
        return self._has_ended

    def get(self) -> Any:
        """Waits for the result, as a RemoteValue does."""
        found = super().get()
        self._end()
        return found

    def _set_error(self, error: Exception) -> None:
        super()._set_error(error)
        self._end()

    def _end(self) -> None:
        with self._end_lock:
            if self._has_ended:
                return
            self._has_ended = True
        for callback in self._callbacks:
            _call(callback, self)
        self._callbacks.clear()
        _waiting.discard(self)
        self._on_end(self)


class _BoundValue(ScheduledValue):
    """The result of a call that only one worker may run."""

    def _set_aborted(self, error: Exception) -> None:
        if not self.done():
            self._set_error(
                ClusterError(
                    f"worker {self._closure.worker} must run this call, which is bound to it, but "
                    "was lost: schedule it again, or without worker="
                )
            )


_waiting: set[ScheduledValue] = set()  # that have callbacks: else nobody may hold them


def _call(callback: Callable[[ScheduledValue], None], value: ScheduledValue) -> None:
    try:
        callback(value)
    except Exception:
        say(f"embedps: a callback of a call raised\n{traceback.format_exc()}", file=sys.stderr)


class _Call(cluster_coordinator.Closure):
    """A call that any worker may run."""

    def build_output_remote_value(self) -> ScheduledValue:
        value = ScheduledValue(None, self._output_type_spec)
        self._output_remote_value_ref = weakref.ref(value)
        return value


class _BoundCall(cluster_coordinator.ResourceClosure):
    """A call that one worker runs, at most once: TensorFlow runs such a closure there only."""

    def __init__(self, worker: int, on_end: Callable[[Any], None], *args: Any) -> None:
        super().__init__(*args)
        self.worker = worker
        self._on_end = on_end

    def _init_remote_value(self) -> _BoundValue:
        return _BoundValue(self, self._output_type_spec, self._on_end)

    def execute_on(self, worker: Any) -> None:
        """Runs the call, unless it has ended: TensorFlow tries again once the worker is back."""
        value = self.build_output_remote_value()
        if value is not None and not value.done():
            super().execute_on(worker)
            value.get()


class Coordinator(tf.distribute.coordinator.ClusterCoordinator):
    """Schedules a program's functions on the workers, as TensorFlow's ClusterCoordinator does.

    It also tells when a call has ended, binds a call to a worker, and gives each worker values of
    its own.
    """

    def __new__(cls, strategy: tf.distribute.Strategy) -> Coordinator:
        """Gives the strategy's coordinator.

        Raises:
          UsageError: it has one of another class.
        """
        made = super().__new__(cls, strategy)
        if not isinstance(made, cls):
            raise UsageError(
                f"a strategy has one coordinator, which must be an embedps.Coordinator, but it is "
                f"a {type(made).__name__}: make the embedps.Coordinator before it, and before fit"
            )
        return made

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """Starts to coordinate, unless the strategy has begun to."""
        if not hasattr(self, "_bound"):
            self._bound: set[ScheduledValue] = set()
            self._bound_lock = threading.Condition()
            self._bound_error: Exception | None = None
        super().__init__(strategy)

    def schedule(
        self,
        fn: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        worker: int | None = None,
    ) -> ScheduledValue:
        """Queues a function.

        Args:
          fn: a tf.function.
          args: its arguments. A value of `create_per_worker` or an iterator is its worker's part.
          kwargs: more of them.
          worker: the only one that may run it, by its index. If it is lost before the call has
            ended, the call ends with a ClusterError. By default any worker may, and another one
            runs it again if its worker is lost.

        Returns:
          The result to be.

        Raises:
          UsageError: there is no such worker.
          Exception: an earlier call raised it.
        """
        if not hasattr(fn, "get_concrete_function") and not hasattr(fn, "structured_outputs"):
            raise UsageError(f"schedule must get a tf.function but got {fn!r:.60}")
        workers = self._cluster.workers
        if worker is not None and not 0 <= worker < len(workers):
            raise UsageError(f"worker must be from 0 to {len(workers) - 1} but is {worker}")
        queue, extended = self._cluster.closure_queue, self.strategy.extended
        with self.strategy.scope():
            extended._being_scheduled = True
            try:
                value: ScheduledValue
                if worker is None:
                    call = _Call(fn, queue._cancellation_mgr, args, kwargs)
                    value = call.build_output_remote_value()
                    queue.put(call)
                    return value
                manager = self._cluster.resource_cancellation_mgr
                bound = _BoundCall(worker, self._end_bound, fn, manager, args, kwargs)
                value = bound.build_output_remote_value()
                with self._bound_lock:
                    self._bound.add(value)
                workers[worker]._register_and_schedule_resource_closure(bound)
                return value
            finally:
                extended._being_scheduled = False

    def create_per_worker(self, fn: Any, args: Sequence[Any] | None = None) -> Any:
        """Calls a function once on each worker, for values that its calls get as an argument.

        A worker that was lost calls it again when it is back.

        Args:
          fn: returns tensors, which stay on the worker: also resources, such as the handle of a
            lookup table.
          args: of the function.

        Returns:
          A tf.distribute.coordinator.PerWorkerValue.
        """
        is_traced = hasattr(fn, "get_concrete_function")
        return self._create_per_worker_resources(fn if is_traced else tf.function(fn), args)

    def join(self) -> None:
        """Waits for all calls; raises what one of them raised."""
        super().join()
        with self._bound_lock:
            self._bound_lock.wait_for(lambda: not self._bound)
        self._raise_bound_error()

    def done(self) -> bool:
        """Tells whether all calls have ended; raises what one of them raised."""
        self._raise_bound_error()
        return bool(super().done()) and not self._bound

    def _raise_bound_error(self) -> None:
        with self._bound_lock:
            error, self._bound_error = self._bound_error, None
        if error is not None:
            raise error

    def _end_bound(self, value: ScheduledValue) -> None:
        with self._bound_lock:
            self._bound.discard(value)
            self._bound_error = self._bound_error or value._error
            self._bound_lock.notify_all()
