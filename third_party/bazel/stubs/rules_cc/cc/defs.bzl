"""The C++ rules built into Bazel, by the names rules_cc gives them."""

# What rules_cc itself adds: without it the built-in rules may refuse to be used directly.
_MIGRATED = ["__CC_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"]

def cc_binary(tags = [], **kwargs):
    native.cc_binary(tags = tags + _MIGRATED, **kwargs)

def cc_import(tags = [], **kwargs):
    native.cc_import(tags = tags + _MIGRATED, **kwargs)

def cc_library(tags = [], **kwargs):
    native.cc_library(tags = tags + _MIGRATED, **kwargs)

def cc_test(tags = [], **kwargs):
    native.cc_test(tags = tags + _MIGRATED, **kwargs)

def cc_toolchain(tags = [], **kwargs):
    native.cc_toolchain(tags = tags + _MIGRATED, **kwargs)

def cc_toolchain_suite(tags = [], **kwargs):
    native.cc_toolchain_suite(tags = tags + _MIGRATED, **kwargs)
