"""The `weft` command."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

import weft
from weft import target
from weft.arguments import above_zero, at_least_one, seed, why_no_file


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    >>> main(["explain", "missing.py:example"])
    weft explain: there is no file missing.py
    2
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows the others
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    options.rest = rest
    run: Callable[[argparse.Namespace], int] = options.run
    if rest and run is not _bench:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weft", description="Batched execution of networks over trees and graphs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, about: str, usage: str | None = None, epilog: str | None = None) -> argparse.ArgumentParser:
        description = f"{about[0].upper()}{about[1:]}."
        return commands.add_parser(name, help=about, description=description, usage=usage, epilog=epilog)

    demo = command("demo", "train a tree network, compare, time, explain, write a report page")
    where = "where the report page goes (default: %(default)s)"
    demo.add_argument("--out", type=Path, metavar="FILE", default=Path("report.html"), help=where)
    demo.add_argument("--quick", action="store_true", help="a few seconds: too short to learn much")
    demo.set_defaults(run=_demo)

    bench = command(
        "bench",
        "time the papers' workloads beside the alternatives on this machine",
        usage="weft bench [NAME ...] [OPTION ...]",
        epilog="Names and options go to `python -m benchmarks` of the source checkout, whose own --help lists them.",
    )
    bench.set_defaults(run=_bench)

    explain = command("explain", "show how a model would run on an example")
    explain.add_argument("target", metavar="FILE.py:NAME", help="a function without arguments that returns (model, *inputs)")
    explain.set_defaults(run=_explain)

    train = command(
        "train",
        "train a network on the data in a folder",
        epilog="A line is a tree of nested (label left right) and (label word).",
    )
    train.add_argument("recipe", metavar="RECIPE", help="sst: trees with labels, in train.txt, dev.txt, test.txt, or with .gz")
    train.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the data")
    for name, kind, shown, default, about in (
        ("--epochs", at_least_one, "N", 8, "how often every example is seen"),
        ("--batch", at_least_one, "N", 32, "examples in a step"),
        ("--dim", at_least_one, "N", 128, "hidden size"),
        ("--rate", above_zero, "X", 0.003, "learning rate"),
        ("--seed", seed, "N", 0, "of everything that is drawn"),
    ):
        train.add_argument(name, type=kind, metavar=shown, default=default, help=f"{about} (default: %(default)s)")
    train.add_argument("--out", type=Path, metavar="FILE", help="where parameters, vocabulary and accuracies go, by torch.save")
    train.set_defaults(run=_train)
    return parser


def _demo(options: argparse.Namespace) -> int:
    import torch
    from rich.console import Console

    from weft.demo import Settings, run

    if problem := why_no_file(options.out):
        return _fail("demo", f"--out: {problem}")
    torch.set_num_threads(1)  # its matrices are small: more threads would wait for each other
    run(Settings.quick() if options.quick else Settings(), options.out, Console())
    return 0


def _bench(options: argparse.Namespace) -> int:
    checkout = Path(__file__).parents[2]
    if not (checkout / "benchmarks" / "__main__.py").exists():
        return _fail("bench", "the benchmarks are part of the source checkout; run it from there, with weft installed in place")
    path = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "benchmarks", *options.rest]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False).returncode


def _explain(options: argparse.Namespace) -> int:
    try:
        file, name = target.split(options.target)
        with target.importable(file):
            model, *inputs = target.example(file, name)
            print(weft.plan(model, *inputs).explain())
    except (target.NotAnExample, weft.StructureError, weft.TypeMismatch) as error:
        return _fail("explain", str(error))
    return 0


def _train(options: argparse.Namespace) -> int:
    import torch
    from rich.console import Console

    from weft.train import RECIPES, Settings

    if options.recipe not in RECIPES:
        return _fail("train", f"there is no recipe {options.recipe}; there is {', '.join(RECIPES)}")
    if options.out is not None and (problem := why_no_file(options.out)):
        return _fail("train", f"--out: {problem}")
    settings = Settings(options.epochs, options.batch, options.dim, options.rate, seed=options.seed)
    try:
        found = RECIPES[options.recipe](options.data, settings, Console(highlight=False, soft_wrap=True))
    except weft.StructureError as error:
        return _fail("train", str(error))
    if options.out is not None:
        torch.save(found, options.out)
        print(f"saved: {options.out}")
    return 0


def _fail(command: str, message: str) -> int:
    print(f"weft {command}: {message}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
