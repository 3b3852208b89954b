"""The devices of this process that compute the parts of a step, and the strategy that runs them."""

from __future__ import annotations

import tensorflow as tf

from embedps.errors import UsageError


def make_replica_devices(num_replicas: int) -> list[str]:
    """Gives each replica a device: a GPU if there are any, else a logical CPU.

    Call it before TensorFlow runs anything: then it cannot divide the CPU any more.

    Raises:
      UsageError: there are GPUs but too few, or TensorFlow has started with fewer CPUs.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if len(gpus) < num_replicas:
            raise UsageError(
                f"--mirrored needs a GPU per replica, {num_replicas}, but there are {len(gpus)}: "
                "lower --replicas, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to use logical CPUs"
            )
        return [f"/device:GPU:{i}" for i in range(num_replicas)]
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * num_replicas
        )
    except RuntimeError:  # it has started
        found = len(tf.config.list_logical_devices("CPU"))
        if found < num_replicas:
            raise UsageError(
                f"--mirrored needs {num_replicas} logical CPUs but TensorFlow has started with "
                f"{found}: make the Trainer before anything else runs TensorFlow"
            ) from None
    return [f"/device:CPU:{i}" for i in range(num_replicas)]


def make_mirrored_strategy(num_replicas: int) -> tf.distribute.MirroredStrategy:
    """Makes the strategy whose replicas compute the parts of a step.

    Raises:
      UsageError: as `make_replica_devices`.
    """
    return tf.distribute.MirroredStrategy(
        make_replica_devices(num_replicas),
        # Unused: parts are merged in order of rank. The default starts NCCL.
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
