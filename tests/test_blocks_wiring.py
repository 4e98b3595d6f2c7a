"""Blocks that are wired in a way that cannot work, or that stand for themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
import weft.blocks as wb
from block_parts import mix

T = wb.TensorType

COMPOSITION: list[tuple[Callable[[wb.Composition], Any], type[Exception], str]] = [
    (lambda c: wb.Function(torch.neg).reads(c.output), ValueError, "the output of a composition cannot be read inside it"),
    (lambda c: c.input.reads(c.input), ValueError, "the input of a composition cannot read"),
    (lambda c: c.output.reads(wb.Composition().input), ValueError, "belongs to another composition"),
    (lambda c: [c.output.reads(c.input) for _ in range(2)], ValueError, "is already connected"),
]


@pytest.mark.parametrize("number", range(len(COMPOSITION)))
def test_wrong_wires(number: int) -> None:
    wire, kind, text = COMPOSITION[number]
    whole = wb.Composition()
    with whole.scope(), pytest.raises(kind, match=re.escape(text)):
        wire(whole)


def test_a_composition_with_a_cycle_or_something_unused() -> None:
    whole = wb.Composition().set_input_type([])
    one, two = wb.Function(mix).set_output_type([]), wb.Function(torch.neg).set_output_type([])
    with whole.scope():
        one.reads(whole.input, two)
        two.reads(one)
        whole.output.reads(one)
    with pytest.raises(ValueError) as caught:
        whole.eval_one(1.0)
    assert str(caught.value) == "<wb.Composition>: Composition cannot have cycles."
    assert isinstance(caught.value, weft.StructureError)
    untyped, first, second = wb.Composition(), wb.Function(torch.neg), wb.Function(torch.neg)
    for a, b in ((first, second), (second, first), (first, untyped.output)):
        untyped.connect(a, b)
    with pytest.raises(ValueError) as caught:
        wb.compile(wb.Map(untyped))
    assert str(caught.value) == "Map[0]/<wb.Composition>: Composition cannot have cycles."
    idle = wb.Composition().set_input_type([])
    with idle.scope():
        wb.Function(torch.neg).reads(idle.input)
        idle.output.reads(idle.input)
    with pytest.raises(weft.TypeMismatch, match=r"children have unused outputs: <wb.Function neg>"):
        idle.eval_one(1.0)


def calls_itself(make: Callable[[Callable[[], wb.Block]], wb.Block]) -> wb.Block:
    again = wb.ForwardDeclaration(wb.PyObjectType(), T([]))
    again.resolve_to(make(again))
    return again()


ENDLESS: list[tuple[Callable[[Callable[[], wb.Block]], wb.Block], str]] = [
    (lambda again: wb.AllOf(again(), wb.Scalar()) >> wb.Function(torch.add), "<wb.Pipe>"),
    (lambda again: wb.OneOf(len, (wb.Scalar(), again())), "<wb.OneOf len>"),
    (lambda again: wb.Optional(again()), "<wb.Optional>"),
    (lambda again: again() >> wb.Function(torch.neg), "<wb.Pipe>"),
    (lambda again: wb.OneOf(len, (wb.Identity(), wb.Identity()), again()), "<wb.OneOf len>"),
]


@pytest.mark.parametrize("number", range(len(ENDLESS)))
def test_a_block_that_calls_itself_on_its_own_input(number: int) -> None:
    make, block = ENDLESS[number]
    with pytest.raises(weft.StructureError) as caught:
        wb.compile(wb.Map(calls_itself(make)))
    assert str(caught.value) == f"{block}: it calls itself on the input that it was given, without end"


def test_declarations_that_stand_for_each_other() -> None:
    one, two = (wb.ForwardDeclaration(wb.PyObjectType(), T([])) for _ in range(2))
    one.resolve_to(two())
    two.resolve_to(one())
    with pytest.raises(ValueError, match="it calls itself on the input that it was given, without end"):
        one().eval_one(1)


def test_an_output_that_reads_nothing() -> None:
    net = wb.Composition()
    with net.scope():
        wb.Scalar().reads(net.input)
    with pytest.raises(weft.TypeMismatch) as caught:
        net.eval_one(3)
    assert str(caught.value) == "<wb.Composition>: its output reads nothing; wire it, or set_output_type(VoidType())"


def test_a_failed_connection_leaves_nothing_behind() -> None:
    net, number, wrong = wb.Composition(), wb.Scalar(), wb.Scalar()
    net.connect(net.input, number)
    net.connect(number, net.output)
    for source, reader, kind in ((number, wrong, TypeError), (wrong, number, ValueError), ((wrong, 3), wb.Concat(), TypeError)):
        with pytest.raises(kind):
            net.connect(source, reader)
        assert net.subblocks == (number,) and not wrong._parents
    assert net.eval_one(3) == 3
    assert (wb.GetItem("a") >> wrong).eval_one({"a": 2}) == 2
