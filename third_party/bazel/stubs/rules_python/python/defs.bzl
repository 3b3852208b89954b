"""The Python rules built into Bazel, by the names rules_python gives them."""

_MIGRATED = ["__PYTHON_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"]

def py_binary(tags = [], **kwargs):
    native.py_binary(tags = tags + _MIGRATED, **kwargs)

def py_library(tags = [], **kwargs):
    native.py_library(tags = tags + _MIGRATED, **kwargs)

def py_test(tags = [], **kwargs):
    native.py_test(tags = tags + _MIGRATED, **kwargs)
