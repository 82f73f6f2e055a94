# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What tracking costs redis: sets a second, untracked and under `trapless dirty record`, by turns in one run.

make -C dirty bench-redis
"""

import statistics
import subprocess
import tempfile
from pathlib import Path

import stock_programs
from packages import unpacked
from trapless_lab import artifacts

RUNS = 5
REQUESTS = 400_000
KEYS = 200_000
WARM_UP = 1.0  # seconds: the tracker has attached


def _sets_a_second(socket: Path) -> float:
    """Return the throughput that redis-benchmark reports: random keys, 600 bytes each."""
    benchmark = unpacked("redis-tools") / "usr/bin/redis-benchmark"
    command: list[str | Path] = [benchmark, "-s", socket, "-t", "set", "-n", str(REQUESTS)]
    command += ["-r", str(KEYS), "-d", "600", "--csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return float(done.stdout.splitlines()[-1].split(",")[1].strip('"'))


def _recorded(pid: int, socket: Path, backend: str, interval: str, folder: Path) -> float:
    command: list[str | Path] = [artifacts.program("trapless"), "dirty", "record", str(pid)]
    command += ["--backend", backend, "--interval", interval, "--force", "-o", folder / "recording"]
    with subprocess.Popen(command) as record:
        try:
            try:
                code = record.wait(timeout=WARM_UP)
            except subprocess.TimeoutExpired:
                return _sets_a_second(socket)
            raise SystemExit(f"trapless dirty record ended with {code}")
        finally:
            record.terminate()


def main() -> None:
    """Print a line for each way, with the spread."""
    ways = [("uffd-async", "1"), ("uffd-async", "0.1"), ("uffd-sync", "1")]
    rates: dict[str, list[float]] = {}
    with stock_programs.redis(KEYS) as (program, socket), tempfile.TemporaryDirectory() as folder:
        _sets_a_second(socket)  # its memory is there
        for run in range(RUNS):
            print(f"run {run + 1} of {RUNS}", flush=True)
            rates.setdefault("untracked", []).append(_sets_a_second(socket))
            for backend, interval in ways:
                rate = _recorded(program.pid, socket, backend, interval, Path(folder))
                rates.setdefault(f"{backend}, a sample each {interval} s", []).append(rate)
    base = statistics.median(rates["untracked"])
    for name, values in rates.items():
        median = statistics.median(values)
        spread = f"{min(values) / base:.2f} to {max(values) / base:.2f}"
        print(f"{name:<36} {median:>9.0f} sets/s   {median / base:.2f} of untracked ({spread})")


if __name__ == "__main__":
    main()
