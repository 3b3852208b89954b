"""A worker process of a multi-process run that logs nothing; Beam's own logs every start and end.

What fails in it is told by the runner all the same.
"""

from __future__ import annotations

import logging
import sys

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)
