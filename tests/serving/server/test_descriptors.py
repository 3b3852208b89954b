"""A process opens as many descriptors as it may, and no port takes those of another."""

from __future__ import annotations

import resource

from embedps.serving.server import descriptors


def test_the_soft_limit_is_raised_and_shared_out() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        most = descriptors.share_out()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised == (min(hard, 1 << 16) if hard >= 0 else 1 << 16, hard)
        assert most.grpc == min(4096, raised[0] // 2)
        assert most.rest == min(512, raised[0] // 4)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
