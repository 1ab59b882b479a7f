"""System calls that an answer has no use for, refused by a seccomp filter.

Refused is what would make memory that no limit counts (memfd, System V shared memory, a tmpfs mounted in a user
namespace of one's own), and parts of the kernel that are often attacked. The filter is a classic BPF program, as in
the kernel's Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENT_AT = 0, 4, 16
"""Offsets in ``struct seccomp_data``; the argument's is that of the low half of the first one (little endian)."""
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID and -NET."""
_X32 = 0x40000000
_COMMON = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsmount": 432,
    "memfd_secret": 447,
}


@dataclass(frozen=True, slots=True)
class _Machine:
    arch: int
    """AUDIT_ARCH_*."""
    clone: int
    refused: dict[str, int]


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        56,
        _COMMON
        | {"shmget": 29, "msgget": 68, "ptrace": 101, "pivot_root": 155, "mount": 165, "umount2": 166}
        | {"init_module": 175, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272}
        | {"perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310}
        | {"process_vm_writev": 311, "finit_module": 313, "memfd_create": 319, "bpf": 321, "userfaultfd": 323},
    ),
    "aarch64": _Machine(
        0xC00000B7,
        220,
        _COMMON
        | {"umount2": 39, "mount": 40, "pivot_root": 41, "unshare": 97, "kexec_load": 104, "init_module": 105}
        | {"ptrace": 117, "msgget": 186, "shmget": 194, "add_key": 217, "request_key": 218, "keyctl": 219}
        | {"perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270}
        | {"process_vm_writev": 271, "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282},
    ),
}
_CLONE3 = 435


def supported() -> bool:
    return platform.machine() in _MACHINES


def filter_program() -> bytes:
    """The compiled filter for this machine. Refused calls fail with EPERM, a foreign architecture's kill the process.

    clone3 answers ENOSYS, for its flags are out of a filter's sight; the C library then takes clone.
    """
    machine = _MACHINES[platform.machine()]
    code = [
        _statement(_LOAD, _ARCH_AT),
        _jump(_EQUAL, machine.arch, 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD, _NUMBER_AT),
        _jump(_AT_LEAST, _X32, 0, 1),
        _statement(_RETURN, _ERRNO | _EPERM),
        _jump(_EQUAL, _CLONE3, 0, 1),
        _statement(_RETURN, _ERRNO | _ENOSYS),
    ]
    for number in sorted(machine.refused.values()):
        code += [_jump(_EQUAL, number, 0, 1), _statement(_RETURN, _ERRNO | _EPERM)]
    code += [
        _jump(_EQUAL, machine.clone, 0, 3),
        _statement(_LOAD, _ARGUMENT_AT),
        _jump(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        _statement(_RETURN, _ERRNO | _EPERM),
        _statement(_RETURN, _ALLOW),
    ]
    return b"".join(code)


def _statement(operation: int, value: int) -> bytes:
    return _jump(operation, value, 0, 0)


def _jump(operation: int, value: int, if_true: int, if_false: int) -> bytes:
    """One ``struct sock_filter``; jumps count the instructions that are passed over."""
    return struct.pack("<HBBI", operation, if_true, if_false, value)
