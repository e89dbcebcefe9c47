"""`attnloom bench draw`: table and chart of what a GPU run wrote, without a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("json", type=Path, metavar="FILE", help="JSON of `attnloom bench --device cuda`")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="PNG and SVG beside it; default: beside the JSON")


def run(args: argparse.Namespace) -> int:
    """Print the tables and write the chart; raises InvalidArgument for another kind of file."""
    from attnloom.bench.gpu import charts, record, table

    report = record.from_json(args.json.read_text(encoding="utf-8"), str(args.json))
    print(table.render(report))
    print("wrote", ", ".join(map(str, charts.draw(report, args.chart or args.json.with_suffix(".png")))))
    return 0
