// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The beginning of Python programs that run under seccomp.

/// Defines `forbid(allowed, action)`: from then on every thread of the program may make the calls that are `allowed`
/// alone, as pairs of first and last number, and gets `action` for all others.
pub const FORBID: &str = r#"
import ctypes, os, struct
ERRNO_EPERM, KILL_PROCESS, ALLOW = 0x00050001, 0x80000000, 0x7fff0000
def forbid(allowed, action):
    code = [(0x20, 0, 0, 0)]                                  # load the number
    for first, last in allowed:
        code += [(0x35, 0, 2, first), (0x25, 1, 0, last), (0x06, 0, 0, ALLOW)]
    code += [(0x06, 0, 0, action)]
    program = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer)), 16)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0                    # PR_SET_NO_NEW_PRIVS
    assert libc.syscall(SECCOMP, 1, 1, header) == 0           # SECCOMP_SET_MODE_FILTER, TSYNC
# Default deny, as containers have it: without ptrace, process_vm_*, userfaultfd and what came after it.
container = {
    "x86_64": [(0, 100), (102, 309), (312, 322), (324, 334), (424, 450)],
    "aarch64": [(0, 116), (118, 269), (272, 281), (283, 293), (424, 450)],
}[os.uname().machine]
# What a sandboxed server leaves itself: no close, no rt_sigprocmask, no rt_sigreturn.
sandbox = {
    "x86_64": [(0, 1), (7, 7), (9, 12), (20, 20), (23, 23), (25, 25), (28, 28), (35, 35), (60, 60), (202, 202),
               (219, 219), (228, 228), (230, 232), (270, 270)],
    "aarch64": [(22, 22), (63, 64), (66, 66), (72, 73), (93, 94), (98, 98), (101, 101), (113, 113), (115, 115),
                (128, 128), (214, 216), (222, 222), (226, 226), (233, 233)],
}[os.uname().machine]
SECCOMP, USERFAULTFD = {"x86_64": (317, 323), "aarch64": (277, 282)}[os.uname().machine]
filters = {"container": (container, ERRNO_EPERM), "sandbox": (sandbox, KILL_PROCESS)}
"#;
