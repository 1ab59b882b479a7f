"""Runs inside the sandbox, on the standard library alone: takes its limits on, then runs an answer and one test.

``python -I -B -c <this file> JOB_FD RESULT_FD``. JOB_FD holds the job as JSON. RESULT_FD gets one line when the limits
hold, and then what the test came to.
"""

import builtins
import json
import os
import resource
import sys


def take_limits(limits: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, value in limits.items():
        limit = getattr(resource, name)
        resource.setrlimit(limit, (value, value))


def drop_to(uid: int) -> None:
    """From root to a user of this run alone; the number of its processes is then the kernel's to limit."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main() -> None:
    job_fd, result_fd = int(sys.argv[1]), int(sys.argv[2])
    with open(job_fd, encoding="utf-8") as file:
        job = json.load(file)
    take_limits(job["limits"])
    if job["uid"] is not None:
        drop_to(job["uid"])
    os.write(result_fd, b"started\n")
    sys.argv[:] = ["answer.py"]
    test = job["test"]
    namespace: dict[str, object] = {
        "__name__": "__main__" if test["kind"] == "stdin" else "answer",
        "__builtins__": builtins,
    }
    exec(compile(job["answer"], "answer.py", "exec"), namespace)
    if test["kind"] == "call":
        function = namespace[test["function"]]
        if not callable(function):
            raise TypeError(f"{test['function']} is not a function")
        value = function(*test["arguments"])
        with open(result_fd, "w", encoding="utf-8", closefd=False) as file:
            json.dump(value, file)
    elif test["kind"] == "assert":
        exec(compile(test["code"], "test.py", "exec"), namespace)
        os.write(result_fd, test["token"].encode())


main()
