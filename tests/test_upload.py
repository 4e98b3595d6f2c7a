"""Index arrays go to a device in one piece; each is found there by where it lies here."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import weft
from weft.api.vertexcall import VertexCall
from weft.graph.program import Ints
from weft.plan.native import device_parts
from weft.plan.plan import Plan
from weft.plan.returns import returns
from weft.run.addresses import Addresses, There
from weft.run.gpu.table import step_table
from weft.run.indices import Indices
from weft.run.options import DEFAULT
from weft.run.upload import ALIGNED, Uploaded, as_tensor

CPU = torch.device("cpu")


def test_arrays_are_found_in_their_blocks() -> None:
    first, second = np.arange(7, dtype=np.int32), np.arange(100, 112, dtype=np.int32).reshape(3, 4)
    there = Uploaded([first, second], CPU)
    for array in (first, first[2:5], second, second[1]):
        found = there.tensor(array)
        assert found is not None
        assert found.tolist() == array.reshape(-1).tolist()
    start = there.tensor(second)
    assert start is not None
    assert (start.data_ptr() - there.memory.data_ptr()) % (4 * ALIGNED) == 0
    assert there.tensor(np.arange(3, dtype=np.int32)) is None


def _step_tables(plan: Plan) -> list[Ints]:
    return [step_table(plan, number) for number, group in enumerate(plan.groups) if group.cyclic]


def tree_plan() -> Plan:
    graph = weft.Graph.batch([weft.Graph.full_binary_tree(n) for n in (2, 4, 8)])
    call = VertexCall(weft.nn.ChildSumTreeLSTM(2, 3), graph, torch.randn(graph.num_vertices, 2), None, None, None, DEFAULT)
    return call.plan()[0]


def integers(there: Any) -> list[int]:
    """What lies at an address."""
    assert isinstance(there, There)
    return list((ctypes.c_int32 * there.count).from_address(there.address))


def test_what_a_plan_is_read_by_comes_from_one_copy() -> None:
    """Also in a plan that was not made in C, whose arrays are pieces of their own."""
    plan = tree_plan()
    assert _step_tables(plan)
    for in_parts in (True, False):
        if in_parts and not device_parts(plan, False):
            continue
        if not in_parts:
            plan = replace(plan)
        indices = Indices(plan, CPU)
        indices.bring(True, partial(_step_tables, plan))
        assert indices.there is not None
        memory = indices.there.memory
        read = [*plan.rows, *(one.index for one in plan.reads), *_step_tables(plan)]
        read += [one.single for one in returns(plan).values() if one.single is not None]
        for array in (array for array in read if len(array)):
            found = indices.tensor(array)
            assert torch.equal(found, as_tensor(array, CPU).reshape(-1))
            assert found.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


def test_addresses_lead_to_the_copy_of_a_plan_or_to_one_of_their_own() -> None:
    plan = tree_plan()
    indices = Indices.of(plan, CPU)
    indices.bring(True)
    assert indices.there is not None
    copied, addresses = indices.there.memory, Addresses.of(plan, CPU)
    assert Addresses.of(plan, CPU) is addresses
    for array in [*plan.rows, *[read.index for read in plan.reads]]:
        found: Any = addresses.tensor(array)
        assert integers(found) == array.tolist()
        assert not len(array) or 0 <= found.address - copied.data_ptr() < copied.nbytes
    assert integers(addresses.row_of_node()) == plan.row.tolist()
    fed: Any = [addresses.rows(t) for t in plan.present]
    assert [None if one is None else integers(one) for one in fed] == [
        None if (rows := indices.rows(t)) is None else rows.tolist() for t in plan.present
    ]
