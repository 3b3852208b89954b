"""The rule py_runtime built into Bazel."""

def py_runtime(tags = [], **kwargs):
    native.py_runtime(tags = tags + ["__PYTHON_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"], **kwargs)
