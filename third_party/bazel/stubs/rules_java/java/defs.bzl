"""The Java rules built into Bazel, by the names rules_java gives them."""

_MIGRATED = ["__JAVA_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"]

def java_binary(tags = [], **kwargs):
    native.java_binary(tags = tags + _MIGRATED, **kwargs)

def java_import(tags = [], **kwargs):
    native.java_import(tags = tags + _MIGRATED, **kwargs)

def java_library(tags = [], **kwargs):
    native.java_library(tags = tags + _MIGRATED, **kwargs)

def java_runtime(tags = [], **kwargs):
    native.java_runtime(tags = tags + _MIGRATED, **kwargs)

def java_toolchain(tags = [], **kwargs):
    native.java_toolchain(tags = tags + _MIGRATED, **kwargs)

def java_package_configuration(tags = [], **kwargs):
    native.java_package_configuration(tags = tags + _MIGRATED, **kwargs)
