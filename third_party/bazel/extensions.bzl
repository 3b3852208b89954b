"""@wheels for Bazel 7 and newer, which read MODULE.bazel."""

load(":wheels.bzl", "wheels_repository")

def _wheels_impl(_ctx):
    wheels_repository(name = "wheels")

wheels = module_extension(implementation = _wheels_impl)
