"""A sandbox for untrusted Python: bubblewrap's namespaces, resource limits inside, a watch from outside.

Inside there is no network, no home, no /proc, no environment; the system is read-only and only a small tmpfs is
writable. What this does not protect against is said in docs/rewards-and-data.md.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from sparrow_core.errors import InputError
from sparrow_trainers.rewards.sandbox_filter import filter_program, supported
from sparrow_trainers.rewards.sandbox_job import Ending, SandboxJob, SandboxLimits, SandboxRun, Test
from sparrow_trainers.rewards.sandbox_watch import watch

Mode = Literal["root", "user", "dropped"]
"""root: bubblewrap runs as root and the program drops to a user of its own. user: in a user namespace.
dropped: root without the right to mount, so bubblewrap itself runs as another user, in a user namespace."""

_PROGRAM = Path(__file__).with_name("sandbox_program.py")
_FIRST_UID = 2_000_000_000
_UIDS = 100_000_000
"""A range that no account has: each run counts its processes under a number of its own."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_SELF_TEST_S = 20.0
INSTALL = "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap)"

LEAVE_OUT = "leave the code reward out"


class SandboxUnavailable(InputError):
    """There is no sandbox program, or the system does not let it work. Nothing is ever run without it."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: str
    prefixes: tuple[str, ...]
    """Directories outside the system that it needs, read-only inside."""


class Sandbox:
    """Runs answers under ``limits``. Raises SandboxUnavailable when that is not possible on this machine.

    ``python`` is the interpreter inside; None takes the one that runs this program, without its virtual environment.
    """

    def __init__(self, limits: SandboxLimits, python: str | None = None) -> None:
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxUnavailable(f"the sandbox program bwrap is not on this machine; {INSTALL}")
        if not supported():
            raise SandboxUnavailable(f"the sandbox knows x86_64 and aarch64, not {platform.machine()}; {LEAVE_OUT}")
        self._program = found
        self.limits = limits
        self.interpreter = find_interpreter(python)
        self.mode = self._working_mode()

    def run(self, job: SandboxJob, time_s: float | None = None) -> SandboxRun:
        """``time_s`` is a time limit in place of that of the limits, for this run.

        Raises RuntimeError when the sandbox could not be set up, which says nothing about the answer.
        """
        run = self._run(job, self.mode, self.limits if time_s is None else replace(self.limits, time_s=time_s))
        if not run.started:
            raise RuntimeError(f"the sandbox could not be set up: {run.stderr.strip()[-500:] or run.ending}")
        return run

    def _working_mode(self) -> Mode:
        modes: tuple[Mode, ...] = ("root", "dropped") if os.geteuid() == 0 else ("user",)
        reasons = []
        for mode in modes:
            reason = self._flaw(mode)
            if reason is None:
                return mode
            reasons.append(f"as {mode}: {reason}")
        raise SandboxUnavailable(
            f"{self._program} cannot isolate programs here ({'; '.join(reasons)}); allow user namespaces "
            "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in a container "
            f"--security-opt seccomp=unconfined or --privileged), or {LEAVE_OUT}"
        )

    def _flaw(self, mode: Mode) -> str | None:
        """What does not hold in ``mode``, tried from inside; None when all does."""
        try:
            run = self._run(SandboxJob(_SELF_TEST, Test("stdin")), mode, replace(self.limits, time_s=_SELF_TEST_S))
        except OSError as error:
            return f"it cannot be started: {error}"
        if not run.started:
            return run.stderr.strip()[-300:] or f"it did not start: {run.ending}"
        return (
            None if run.stdout == "sound\n" else f"self-test: {(run.stdout + run.stderr).strip()[-300:] or run.ending}"
        )

    def _run(self, job: SandboxJob, mode: Mode, limits: SandboxLimits) -> SandboxRun:
        uid = _FIRST_UID + random.SystemRandom().randrange(_UIDS)
        job_fd = _in_memory(job.encode(limits, uid if mode == "root" else None))
        filter_fd = _in_memory(filter_program())
        result_read, result_write = os.pipe()
        try:
            process = subprocess.Popen(
                self._command(mode, filter_fd, job_fd, result_write),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[filter_fd, job_fd, result_write],
                env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"},
                user=uid if mode == "dropped" else None,
                group=uid if mode == "dropped" else None,
                extra_groups=[] if mode == "dropped" else None,
                cwd="/",
            )
        except BaseException:
            os.close(result_read)
            raise
        finally:
            for each in (filter_fd, job_fd, result_write):
                os.close(each)
        return watch(process, result_read, job.test.stdin.encode("utf-8", "surrogatepass"), limits)

    def _command(self, mode: Mode, filter_fd: int, job_fd: int, result_fd: int) -> list[str]:
        namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        rights = ["--cap-drop", "ALL"]
        if mode == "root":
            rights += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            namespaces += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
        program = [self.interpreter.path, "-I", "-B", "-c", _PROGRAM.read_text(), str(job_fd), str(result_fd)]
        return [
            *(
                self._program,
                *namespaces,
                "--hostname",
                "sandbox",
                "--seccomp",
                str(filter_fd),
                "--die-with-parent",
                "--new-session",
                *rights,
            ),
            *(*self._system, "--dev", "/dev", "--remount-ro", "/dev"),
            *("--perms", "1777", "--size", str(self.limits.disk_mb * 2**20), "--tmpfs", "/tmp"),
            *("--remount-ro", "/", "--chdir", "/tmp", "--", *program),
        ]

    @cached_property
    def _system(self) -> list[str]:
        arguments = ["--perms", "0755", "--dir", "/etc"]
        for path in _SYSTEM:
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), path]
            else:
                arguments += ["--ro-bind-try", path, path]
        for prefix in self.interpreter.prefixes:
            # Directories that bubblewrap makes by itself are closed to other users.
            for parent in reversed(Path(prefix).parents[:-1]):
                arguments += ["--perms", "0755", "--dir", str(parent)]
            arguments += ["--ro-bind", prefix, prefix]
        return arguments


def _in_memory(content: bytes) -> int:
    """A file descriptor at the start of ``content``."""
    descriptor = os.memfd_create("sandbox")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def check(python: str | None = None) -> str | None:
    """Why answers cannot be run in a sandbox on this machine, with the fix; None when they can."""
    try:
        Sandbox(SandboxLimits(), python)
    except SandboxUnavailable as error:
        return str(error)
    return None


def find_interpreter(python: str | None) -> Interpreter:
    """Raises InputError when ``python`` does not run, or its directory would let a whole home or system in."""
    path = python or os.path.join(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    question = "import os, sys; print(os.path.realpath(sys.executable), sys.prefix, sys.base_prefix, sep='\\n')"
    try:
        asked = subprocess.run([path, "-I", "-c", question], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(
            f"reward.python={path!r} does not run: {error}; give the path of a Python interpreter"
        ) from error
    _, *prefixes = asked.stdout.splitlines()
    outside = sorted({prefix for prefix in prefixes if not _inside(prefix, "/usr")})
    homes = [os.path.expanduser("~"), os.getcwd()]
    for prefix in outside:
        if any(_inside(home, prefix) for home in homes):
            raise InputError(f"reward.python={path!r} lies in {prefix!r}, which holds the home or working directory")
    return Interpreter(path, tuple(outside))


def _inside(path: str, directory: str) -> bool:
    return os.path.commonpath([os.path.realpath(path), os.path.realpath(directory)]) == os.path.realpath(directory)


_SELF_TEST = """
import os, resource, socket, tempfile

def refuses(action):
    try:
        action()
    except OSError:
        return True
    return False

def forks():
    for _ in range(resource.getrlimit(resource.RLIMIT_NPROC)[0] + 1):
        if os.fork() == 0:
            os.close(keep)
            os.read(gate, 1)
            os._exit(0)

gate, keep = os.pipe()
flaws = []
if os.getuid() == 0:
    flaws.append("still root")
# Connecting a datagram socket sends nothing; it only asks for a route.
if not refuses(lambda: socket.socket(type=socket.SOCK_DGRAM).connect(("192.0.2.1", 9))):
    flaws.append("the network is open")
if not refuses(lambda: open("/usr/sandbox-test", "w")) or not refuses(lambda: open("/sandbox-test", "w")):
    flaws.append("the system is writable")
if not refuses(forks):
    flaws.append("the number of processes is not limited")
if not refuses(lambda: os.memfd_create("x")):
    flaws.append("system calls are not filtered")
if refuses(lambda: os.rmdir(tempfile.mkdtemp(dir="/tmp"))):
    flaws.append("/tmp is not writable")
print(*(flaws or ["sound"]), sep=", ", flush=True)
os._exit(0)
"""

__all__ = ["Ending", "Sandbox", "SandboxJob", "SandboxLimits", "SandboxRun", "SandboxUnavailable", "Test", "check"]
