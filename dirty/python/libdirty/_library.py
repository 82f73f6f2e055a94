# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The C library: found, loaded, called.

``dirty.h`` beside this file is a copy of the header, which a test of the C interface keeps equal. What is
declared there can be called here: nothing is declared twice.
"""

import errno
import os
import re
from importlib import resources
from typing import Any

from cffi import FFI

from .errors import error

SONAME = "libdirty.so.1"


def declarations(header: str) -> str:
    """Return what a C compiler is left with of the header."""
    c_only = re.sub(r"#ifdef __cplusplus\n.*?\n#endif[^\n]*", "", header, flags=re.DOTALL)
    return "typedef int pid_t;\n" + re.sub(r"^#.*$", "", c_only, flags=re.MULTILINE)


def _load() -> Any:
    path = os.environ.get("LIBDIRTY_LIBRARY", SONAME)
    try:
        return ffi.dlopen(path)
    except OSError as why:
        raise ImportError(
            f"libdirty for C cannot be loaded: {why}; install it (the package libdirty1, or make -C dirty "
            f"install), or name its file in LIBDIRTY_LIBRARY"
        ) from why


ffi = FFI()
ffi.cdef(declarations(resources.files(__package__).joinpath("dirty.h").read_text()))
_loaded = _load()


def function(name: str) -> Any:
    """Return a function of the header."""
    try:
        return getattr(_loaded, name)
    except AttributeError as why:
        raise error(errno.ENOSYS, f"{name}: the installed {SONAME} is older than this package") from why


def text(pointer: Any) -> str:
    """Return a text of the library."""
    found = ffi.string(pointer)
    assert isinstance(found, bytes)
    return found.decode()


def name(text: str) -> bytes:
    """Return a name as C takes it."""
    if "\0" in text:
        raise ValueError(f"{text!r} has a zero in it")
    return text.encode()


def call(name: str, *arguments: Any) -> int:
    """Call a function that returns a number; a negative one is raised as an error."""
    result = int(function(name)(*arguments))
    if result < 0:
        raise last_error(-result)
    return result


def last_error(number: int) -> Exception:
    """Return the error of the call that has just failed in this thread."""
    return error(number, text(function("dirty_last_error")()))
