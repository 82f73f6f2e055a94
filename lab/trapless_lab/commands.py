# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Click's commands, of which every foreseen error is one message on standard error, and the exit code 1.

Foreseen are the lab's own errors, those of files that the user has named, and a standard output that cannot
be written.
"""

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import Any

import click

from . import output
from .errors import LabError

# What a full disk, a quota, a limit, a broken disk, a reader that has left and a closed file say.
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE, errno.EBADF)


class _Reporting(click.Command):
    def main(self, *arguments: Any, **named: Any) -> Any:
        output.open_standard()
        try:
            with standard_output():
                return super().main(*arguments, **named)
        except LabError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with standard_output():
                return super().invoke(ctx)
        except LabError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.filename is None:
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error


class Command(_Reporting):
    """A command."""


class Group(_Reporting, click.Group):
    """A command that has others."""


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Name standard output if it cannot be written."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in _NOT_WRITABLE:
            raise
        output.give_up_standard()
        raise LabError(f"cannot write standard output: {error.strerror}") from error
