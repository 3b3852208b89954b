"""Runs one target of tools/fuzz_targets.py under atheris; `tools.fuzz` starts it."""

import sys

import atheris

with atheris.instrument_imports(include=["embedps"]):
    import embedps  # noqa: F401  selects Keras 2 before TensorFlow is imported
    from tools.fuzz_targets import TARGETS, call


def main() -> None:
    """Runs the target. It never returns: libFuzzer ends the process."""
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, lambda data: call(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
