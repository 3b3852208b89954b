"""Runs one worker process of a multi-process run without logs.

Beam's own worker logs each start and end. The runner reports a worker's failure in any case.
"""

from __future__ import annotations

import logging
import sys

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)
