"""Command line of the benchmarks."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from benchmarks import append_latency, restore_rate

BENCHMARKS = {
    "append-latency": append_latency.measure,
    "restore-rate": restore_rate.measure,
}


def main() -> int:
    """Run one benchmark, or all, and print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, "all"], default="all")
    parser.add_argument(
        "--json", metavar="FILE", help="write the results; - for stdout"
    )
    options = parser.parse_args()
    names = list(BENCHMARKS) if options.name == "all" else [options.name]
    results = {name: asyncio.run(BENCHMARKS[name]()) for name in names}
    if options.json == "-":
        print(json.dumps(results))
        return 0
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")
    for name, figures in results.items():
        print(name)
        for figure, value in figures.items():
            print(f"  {figure:<28} {value:,.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
