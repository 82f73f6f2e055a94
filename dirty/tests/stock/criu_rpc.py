# SPDX-License-Identifier: Apache-2.0 OR MIT
"""criu by its RPC instead of its command line: criu_rpc.py HOW CRIU ARGUMENTS...

HOW is "swrk" (CRIU, a program, is started for each request), or the socket of a `criu service`. The
arguments are those of criu's command line that guest/criu-chain gives. Requests are made by pycriu, the
client that criu's authors wrote, of Debian's criu package: so this wants Debian's own Python. A restore is
criu's command: a restored process would be a child of the service.
"""

import argparse
import os
import sys
from pathlib import Path

import pycriu  # type: ignore[import-not-found]
import pycriu.images  # type: ignore[import-not-found]

STATISTICS = {
    "pages_skipped_parent": "Memory pages skipped from parent",
    "pages_written": "Memory pages written",
}


def main() -> None:
    """Make one request."""
    how, program, command, *rest = sys.argv[1:]
    if command == "restore":
        os.execv(program, [program, command, *rest])
    parser = argparse.ArgumentParser()
    for flag in ("track-mem", "leave-stopped", "display-stats"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("-t", type=int)
    parser.add_argument("-D", type=Path)
    parser.add_argument("-v4", action="store_true")
    parser.add_argument("-o")
    parser.add_argument("--prev-images-dir")
    given = parser.parse_args(rest)

    client = pycriu.criu()
    if how == "swrk":
        client.use_binary(program)
    else:
        client.use_sk(how)
    folder = os.open(given.D, os.O_DIRECTORY)
    client.opts.images_dir_fd = folder
    client.opts.pid = given.t
    client.opts.log_level = 4
    client.opts.log_file = given.o
    client.opts.track_mem = given.track_mem
    if given.prev_images_dir:
        client.opts.parent_img = given.prev_images_dir
    if given.leave_stopped:
        # The protocol has no field for it.
        configuration = given.D / "configuration"
        configuration.write_text("leave-stopped\n")
        client.opts.config_file = str(configuration)
    try:
        client.pre_dump() if command == "pre-dump" else client.dump()
    except pycriu.CRIUException as error:
        sys.exit(f"Error: {error}")
    with (given.D / "stats-dump").open("rb") as image:
        counted = pycriu.images.load(image)["entries"][0]["dump"]
    for name, words in STATISTICS.items():
        print(f"{words}: {counted[name]}")


if __name__ == "__main__":
    main()
