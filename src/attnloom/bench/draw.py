"""`attnloom bench draw`: table and chart of what a GPU run wrote, without a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("json", type=Path, metavar="FILE", help="JSON of `attnloom bench --device cuda`")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="PNG and SVG beside it; default: beside the JSON")
    parser.add_argument("--markdown", action="store_true", help="print the tables for a README instead, draw nothing")


def run(args: argparse.Namespace) -> int:
    """Print the tables and write the charts; raises InvalidArgument for another kind of file."""
    from attnloom.bench.gpu import charts, markdown, record, table

    report = record.from_json(args.json.read_text(encoding="utf-8"), str(args.json))
    if args.markdown:
        print(markdown.render(report))
        return 0
    print(table.render(report))
    print("wrote", ", ".join(map(str, charts.draw(report, args.chart or args.json.with_suffix(".png")))))
    return 0
