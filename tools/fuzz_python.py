"""Runs one target of tools/fuzz_targets.py under atheris; `tools.fuzz` starts it."""

import random
import resource
import sys

import atheris

_INSTRUMENTED = ["embedps", "tomllib"]
_MOST_BYTES = 8 << 30  # of addresses: what takes more gets a MemoryError, which is a finding

with atheris.instrument_imports(include=_INSTRUMENTED):
    import embedps  # noqa: F401  selects Keras 2 before TensorFlow is imported
    from tools.fuzz_seeds import SEEDS
    from tools.fuzz_targets import CHANGES, TARGETS, call


def main() -> None:
    """Runs the target. It never returns: libFuzzer ends the process."""
    name = sys.argv.pop(1)
    target, change = TARGETS[name], CHANGES.get(name)
    with atheris.instrument_imports(include=_INSTRUMENTED):  # what the first call imports
        for path in sorted((SEEDS / name).iterdir()):
            call(target, path.read_bytes())
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if change is not None and rng.random() < 0.7:
            data = change(data, rng)[:most]
            if rng.random() < 0.8:
                return data
        return bytes(atheris.Mutate(data, most))

    options = {} if change is None else {"custom_mutator": mutate}
    atheris.Setup(sys.argv, lambda data: call(target, data), **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
