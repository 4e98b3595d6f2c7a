"""Measure weft beside the alternatives: `python -m benchmarks.run tree_lstm --batch 64 --mode train`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import data, plot, report
from benchmarks.harness import CLOCKS, Instance, Mode, Timing, Unequal, best_hand, check, measure
from benchmarks.peers import run_peer
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.common import CaseSpec, Options
from weft.arguments import at_least_one, why_no_folder


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"workloads, all by default: {', '.join(WORKLOADS)}")
    parser.add_argument("--data", metavar="DIR", help="folder with sst/, sick/, glove_sick/ (default: WEFT_DATA)")
    sizes = "batch sizes instead of the workload's own"
    parser.add_argument("--batch", type=at_least_one, metavar="N", nargs="+", default=[], help=sizes)
    parser.add_argument("--mode", choices=("train", "infer", "both"), default="both")
    parser.add_argument("--threads", type=at_least_one, metavar="N", default=1, help="of torch (default: %(default)s)")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: the process's own time, on a busy machine")
    parser.add_argument("--repeat", type=at_least_one, metavar="N", help="timed rounds (default: 15, for single examples 5)")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: does it run, is it equal")
    parser.add_argument("--dynet", metavar="PYTHON", help="an interpreter with DyNet, to add its row (benchmarks/peers)")
    parser.add_argument("--dgl", metavar="PYTHON", help="the same for DGL")
    parser.add_argument("--out", type=Path, metavar="DIR", default=report.REPORTS, help="folder of the report")
    chosen = parser.parse_args(given)
    if unknown := [name for name in chosen.names if name not in WORKLOADS]:
        parser.error(f"no workload named {unknown[0]}; there are: {', '.join(WORKLOADS)}")
    if problem := why_no_folder(chosen.out):
        parser.error(f"--out: {problem}")
    return chosen


def _rounds(chosen: argparse.Namespace, instances: Sequence[Instance]) -> int:
    if chosen.repeat:
        return int(chosen.repeat)
    if chosen.quick:
        return 3
    return 15 if len(instances) == 1 else 5


def _peers(case: CaseSpec, chosen: argparse.Namespace, options: Options, rounds: int) -> dict[str, dict[Mode, Timing]]:
    if case.workload != "tree_lstm":
        return {}
    wanted = {"DyNet": chosen.dynet, "DGL": chosen.dgl}
    rounds = min(rounds, 7)
    return {
        name: run_peer.measure(name, python, case, options, rounds, chosen.clock) for name, python in wanted.items() if python
    }


def run_case(case: CaseSpec, chosen: argparse.Namespace, options: Options) -> list[report.Result]:
    """Check in float64 and float32, then measure in float32."""
    where = f"{case.workload}, {case.label}"
    try:
        worst = check(case.build(torch.float64), torch.float64)
        instances = case.build(torch.float32)
        check(instances, torch.float32)
        rounds = _rounds(chosen, instances)
        peers = _peers(case, chosen, options, rounds)
    except Unequal as why:
        raise Unequal(f"{where}: {why}; nothing is reported") from None
    modes: tuple[Mode, ...] = ("train", "infer") if chosen.mode == "both" else (chosen.mode,)
    results = []
    for mode in modes:
        timings = measure(instances, mode, rounds, clock=chosen.clock)
        facts = dict(instances[0].facts) if len(instances) == 1 else {"single examples": len(instances)}
        hand = best_hand(instances[0], timings)
        timings |= {name: times[mode] for name, times in peers.items()}
        results.append(report.Result(case, mode, timings, hand, facts, worst))
    return results


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    torch.set_num_threads(chosen.threads)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        options = Options(chosen.data, tuple(chosen.batch), chosen.quick)
        cases = [case for name in chosen.names or WORKLOADS for case in WORKLOADS[name](options)]
    except data.DataMissing as why:
        console.print(str(why))
        return 2
    results: list[report.Result] = []
    try:
        for case in cases:
            for result in run_case(case, chosen, options):
                console.print(report.table(result))
                results.append(result)
    except run_peer.PeerFailed as why:
        console.print(str(why), markup=False)
        return 2
    except Unequal as why:
        console.print(f"[bold]not equal[/bold]: {why}")
        return 1
    path = report.write(results, chosen.out)
    plot.write(results, path.with_suffix(".svg"))
    missed = sum(not verdict.passed for result in results for verdict in result.verdicts())
    console.print(f"{sum(len(r.verdicts()) for r in results)} targets, {missed} missed")
    console.print(f"report: {path}\nplot: {path.with_suffix('.svg')}", markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
