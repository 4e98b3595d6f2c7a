"""The demo and the command line, small: what they print, what the page holds."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

import weft
from weft import demo
from weft.cli import main
from weft.report import Sample, bars, loss_curve, tree_picture
from weft.treebank import make


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a quick demo prints, and its page."""
    path, screen = tmp_path_factory.mktemp("demo") / "report.html", StringIO()
    demo.run(demo.Settings.quick(), path, Console(file=screen, width=120))
    return screen.getvalue(), path.read_text(encoding="utf-8")


def test_the_demo_shows_accuracy_speed_and_plan(quick: tuple[str, str]) -> None:
    screen, _ = quick
    for words in (
        "Tree-LSTM",
        "bag of words",
        "majority",
        "one by one, plain PyTorch",
        "x faster",
        "the plan of one mini-batch",
    ):
        assert words in screen


def test_the_page_is_complete_and_needs_nothing_from_elsewhere(quick: tuple[str, str]) -> None:
    _, page = quick
    assert page.count("<svg") == 4 and page.count("<section") == 5
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)


def test_the_plan_fits_a_terminal_of_80_columns() -> None:
    sentences, screen = demo.Sentences(make(6, seed=9)), StringIO()
    graph, words, _ = sentences.batch()
    plan = weft.plan(demo.TreeLSTM(8), graph, words)
    demo.show_plan(plan, Console(file=screen, width=80))
    framed = [line[2:-2].rstrip() for line in screen.getvalue().splitlines()[1:-1]]
    assert framed == plan.explain(width=76).splitlines()


def test_the_text_behind_the_longest_bar_is_in_the_picture() -> None:
    picture = bars([("one by one", 1.6202, "1,620.2 ms", "#123"), ("weft", 0.0477, "47.7 ms", "#123")])
    starts = [float(x) for x in re.findall(r"<text x='([\d.]+)' y='[\d.]+' text-anchor='start'", picture)]
    assert max(starts) + 8 * len("1,620.2 ms") <= 440


def test_the_network_learns_and_the_bag_of_words_does_not() -> None:
    settings = demo.Settings(train=600, test=200, longer=20, epochs=12, batch=50, dim=32, rate=0.02)
    data = demo.Data.make(settings)
    torch.manual_seed(0)
    model = demo.TreeLSTM(settings.dim)
    losses = demo.train(model, data, settings, Console(file=StringIO()))
    assert losses[-1] < 0.3 * losses[0]
    said = demo.bag_of_words(data.train)(data.test)
    assert demo.root_accuracy(model, data.test) > 0.3 + demo.share_equal(said, data.test.roots)


def test_batched_equals_the_plain_loop() -> None:
    sentences = demo.Sentences(make(6, seed=9))
    model = demo.TreeLSTM(8).double()
    graph, words, _ = sentences.batch()
    looped = torch.cat([demo.one_by_one(model, tree) for tree in sentences.trees])
    torch.testing.assert_close(model(graph, words), looped, rtol=1e-12, atol=1e-12)
    assert demo.measure(model, sentences, demo.Settings.quick()).difference < 1e-12


def test_pictures_are_well_formed() -> None:
    tree = make(1, seed=4)[0]
    sample = Sample(tree, tree.labels.tolist(), 0)
    for picture in (tree_picture(sample), bars([("a & b", 1.0, "1 ms", "#123")]), loss_curve([1.5, 0.2, 0.01])):
        assert ElementTree.fromstring(picture).tag == "svg"
    assert tree_picture(sample).count("<circle") == len(tree.words)


def test_a_wrong_answer_gets_a_ring() -> None:
    tree = make(1, seed=4)[0]
    wrong = tree.labels.tolist()
    wrong[-1] = (wrong[-1] + 1) % 5
    rings = [tree_picture(Sample(tree, labels, 0)).count("stroke='#000'") for labels in (tree.labels.tolist(), wrong)]
    assert rings == [0, 1]


MODEL = """
import torch, weft

class Sum(weft.VertexFunction):
    def __init__(self):
        super().__init__(state={"h": (2,)})

    def forward(self, v):
        v.scatter(h=v.pull() + v.gather().sum())

def example():
    return Sum(), weft.Graph.chain(5), torch.ones(5, 2)
"""


def test_explain_prints_the_plan_of_an_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my_model.py"
    file.write_text(MODEL, encoding="utf-8")
    assert main(["explain", f"{file}:example"]) == 0
    assert "Sum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("example", "weft explain: expected FILE.py:NAME, got example\n"),
        ("missing.py:example", "weft explain: there is no file missing.py\n"),
    ],
)
def test_explain_says_what_is_wrong(target: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", target]) == 2
    assert capsys.readouterr().out == message


def test_explain_names_a_missing_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty.py"
    file.write_text("", encoding="utf-8")
    assert main(["explain", f"{file}:example"]) == 2
    assert capsys.readouterr().out == f"weft explain: {file} has no function example\n"


def test_bench_outside_a_checkout_says_where_the_benchmarks_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weft.cli.__file__", str(tmp_path / "site" / "weft" / "cli.py"))
    assert main(["bench"]) == 2
    assert capsys.readouterr().out.startswith("weft bench: the benchmarks are part of the source checkout")


def test_bench_passes_names_and_options_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "no_such_workload", "--quick"]) == 2
    assert "no workload named no_such_workload" in capfd.readouterr().err


def test_other_commands_refuse_what_they_do_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--slowly"])
    assert "unrecognized arguments: --slowly" in capsys.readouterr().err


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
