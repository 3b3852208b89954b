"""Runs a program as the tasks of a cluster on this machine: 2 servers, 2 workers, and the chief.

usage: python examples/rfc/on_this_machine.py PROGRAM [ARGUMENTS]
"""

import json
import os
import socket
import subprocess
import sys

COUNTS = {"ps": 2, "worker": 2, "chief": 1}


def main() -> int:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(sum(COUNTS.values()))]
    ports = iter([each.getsockname()[1] for each in sockets])
    cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in COUNTS.items()}
    for each in sockets:
        each.close()
    tasks = {}
    for job, addresses in cluster.items():
        for index in range(len(addresses)):
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            tasks[job, index] = subprocess.Popen(
                [sys.executable, *sys.argv[1:]], env=os.environ | {"TF_CONFIG": json.dumps(config)}
            )
    try:
        return tasks["chief", 0].wait()
    finally:
        for task in tasks.values():
            task.kill()


if __name__ == "__main__":
    sys.exit(main())
