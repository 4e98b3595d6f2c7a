"""Plans with one thing changed, and the sentence that the verifier says of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from small_tree import ints

from weft.graph.program import NodeType, Port, Program
from weft.plan.plan import Plan
from weft.plan.returns import returns


def group(number: int, **changes: Any) -> Callable[[Plan], Plan]:
    """The same plan with one group changed."""

    def change(plan: Plan) -> Plan:
        groups = list(plan.groups)
        groups[number] = replace(groups[number], **changes)
        return with_returns(plan, groups=tuple(groups))

    return change


def read(number: int, **changes: Any) -> Callable[[Plan], Plan]:
    """The same plan with one read changed; 0 is that of the nodes, 1 that of the classifiers."""

    def change(plan: Plan) -> Plan:
        reads = list(plan.reads)
        reads[number] = replace(reads[number], **changes)
        return with_returns(plan, reads=tuple(reads))

    return change


def back(key: tuple[int, int, int], **changes: Any) -> Callable[[Plan], Plan]:
    """The same plan with one return changed."""

    def change(plan: Plan) -> Plan:
        kept = dict(returns(plan))
        kept[key] = replace(kept[key], **changes)
        return replace(plan, _derived={"returns": kept})

    return change


def whole(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: with_returns(plan, **changes)


def with_returns(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, _derived={"returns": returns(plan)}, **changes)


def value_class(number: int, **changes: Any) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        classes = list(plan.classes)
        classes[number] = replace(classes[number], **changes)
        return with_returns(plan, classes=tuple(classes))

    return change


def without_return(plan: Plan) -> Plan:
    kept = {key: value for key, value in returns(plan).items() if key != (2, 0, 1)}
    return replace(plan, _derived={"returns": kept})


def return_to_nowhere(plan: Plan) -> Plan:
    kept = returns(plan)
    return replace(plan, _derived={"returns": {**kept, (2, 0, 0): kept[2, 0, 1]}})


def groups_swapped(plan: Plan) -> Plan:
    return with_returns(plan, groups=(plan.groups[1], plan.groups[0], plan.groups[2]))


def chains() -> Program:
    """Two chains, 0 1 2 and 3 4: every read is a slice, every gradient has one way back."""
    types = NodeType("first"), NodeType("next", (Port("slots", (0,)),))
    return Program(types, ints(0, 1, 1, 0, 1), ints(0, 0, 1, 2, 2, 3), ints(0, 1, 3))


# The plan of the tree: groups leaf, node, classify; leaves 0 1 2 | nodes 3 5, then 4 | classifiers 6 7. Class 0 holds leaves
# and nodes in this order, rows 0 to 5, and the zeros that node 5 reads; class 1 holds the classifiers' results.
BROKEN_PLANS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a type without rows": (whole(rows=(ints(0, 1, 2), ints(3, 5, 4))), "there are rows for 2 types, but the program has 3."),
    "a row holds no node": (
        whole(rows=(ints(0, 1, 8), ints(3, 5, 4), ints(6, 7))),
        "a row holds node 8, but the program has 8 nodes.",
    ),
    "a node runs twice": (
        whole(rows=(ints(0, 1, 2), ints(3, 5, 4, 3), ints(6, 7))),
        "node 3 is in 2 rows; every node runs exactly once.",
    ),
    "a node runs never": (
        whole(rows=(ints(0, 1, 2), ints(3, 5), ints(6, 7))),
        "node 4 is in 0 rows; every node runs exactly once.",
    ),
    "a node among another type": (
        whole(rows=(ints(0, 1, 3), ints(2, 5, 4), ints(6, 7))),
        "row 2 of type 0 is node 3, which has type 1.",
    ),
    "a type in no group": (
        group(2, types=()),
        "type 2 is in 0 groups; a type with nodes is in exactly one. step 0 of group 2 runs type 2, which is not in it.",
    ),
    "a type in two groups": (group(2, types=(1, 2)), "type 1 is in 2 groups; a type with nodes is in exactly one."),
    "a group with a type without nodes": (group(2, types=(2, 3)), "type 3 is in a group, but it has no nodes."),
    "a step of another group's type": (group(1, step_type=ints(1, 2)), "step 1 of group 1 runs type 2, which is not in it."),
    "a step without an end": (group(1, step_hi=ints(2)), "group 1 has steps with a type, a first or a last row missing."),
    "an empty step": (group(1, step_lo=ints(0, 3), step_hi=ints(3, 3)), "step 1 of group 1 (type 1, rows 3:3) runs nothing."),
    "steps with a gap": (
        group(1, step_lo=ints(0, 2), step_hi=ints(1, 3)),
        "step 1 of group 1 (type 1, rows 2:3) should start at row 1: the steps of a type follow each other from row 0 on.",
    ),
    "steps that stop early": (
        group(1, step_hi=ints(1, 2), step_lo=ints(0, 1)),
        "step 1 of group 1 (type 1, rows 1:2) is the last of its type, which has 3 rows.",
    ),
    "a type that no step runs": (
        group(2, step_type=ints(), step_lo=ints(), step_hi=ints()),
        "no step runs type 2, which has 2 rows.",
    ),
    "a step over max_rows": (whole(max_rows=2), "step 0 of group 0 (type 0, rows 0:3) is longer than max_rows, 2."),
    "groups out of order": (
        groups_swapped,
        "node 3 runs in group 0 and reads node 0, which runs only in group 1; groups run after those that feed them.",
    ),
    "a cycle that is denied": (group(1, cyclic=False), "group 1 says it is not cyclic, but its node 4 reads its node 3."),
    "a step before its argument": (
        group(1, step_type=ints(1), step_lo=ints(0), step_hi=ints(3)),
        "node 4 runs in step 0 of group 1 and reads node 3, which runs in step 0; arguments are computed by earlier steps.",
    ),
    "an output in no class": (
        value_class(1, members=()),
        "output 0 of type 2 is in 0 classes; every output is a member of exactly one.",
    ),
    "an output in two classes": (
        value_class(1, members=((2, 0), (1, 0))),
        "output 0 of type 1 is in 2 classes; every output is a member of exactly one.",
    ),
    "an output that does not exist": (
        value_class(1, members=((2, 0), (2, 1))),
        "output 1 of type 2 is in a class, but there is no such output.",
    ),
    "an output said to be elsewhere": (
        whole(class_of={(0, 0): 0, (1, 0): 1, (2, 0): 1}),
        "output 0 of type 1 is said to be in class 1, which does not list it.",
    ),
    "class rows missing": (
        whole(class_row={(0, 0): ints(0, 1, 2), (1, 0): ints(3, 4, 5), (2, 0): ints(0)}),
        "output 0 of type 2 does not have a class row for each of its 2 rows.",
    ),
    "a class of another size": (value_class(0, rows=7), "class 0 has 7 rows, but its members write 6."),
    "a class row out of range": (
        whole(class_row={(0, 0): ints(0, 1, 2), (1, 0): ints(3, 4, 6), (2, 0): ints(0, 1)}),
        "row 6 of class 0 is written, but the class has 6 rows.",
    ),
    "a class row written twice": (
        whole(class_row={(0, 0): ints(0, 1, 2), (1, 0): ints(3, 4, 4), (2, 0): ints(0, 1)}),
        "row 4 of class 0 is written 2 times; every row of a class is written exactly once.",
    ),
    "a step that writes no slice": (
        whole(class_row={(0, 0): ints(0, 1, 2), (1, 0): ints(4, 3, 5), (2, 0): ints(0, 1)}),
        "rows 0 and 1 of type 1 run in one step, but are not side by side in class 0.",
    ),
    "class rows out of order": (
        whole(class_row={(0, 0): ints(3, 4, 5), (1, 0): ints(0, 1, 2), (2, 0): ints(0, 1)}),
        "row 3 of class 0 is written before row 2; class rows are in the order of running.",
    ),
    "a class without its zeros": (
        value_class(0, has_empty=False),
        "class 0 says it has no empty reads, but one of its reads is empty.",
    ),
    "a class with zeros that nobody reads": (
        value_class(1, has_empty=True),
        "class 1 says it has empty reads, but none of its reads is empty.",
    ),
    "a port without a read": (
        lambda plan: with_returns(plan, reads=plan.reads[:1]),
        "port 0 of type 2 has 0 reads; expected exactly one.",
    ),
    "a port with two reads": (
        lambda plan: with_returns(plan, reads=(*plan.reads, plan.reads[0])),
        "port 0 of type 1 has 2 reads; expected exactly one.",
    ),
    "a read of another kind": (
        read(1, kind="edges"),
        "port 0 of type 2 reads 'edges' of width 1; the program says 'sum' of width 1.",
    ),
    "a read of another width": (
        read(0, width=1),
        "port 0 of type 1 reads 'slots' of width 1; the program says 'slots' of width 2.",
    ),
    "other bounds of a bag": (
        read(1, offsets=ints(0, 1, 3)),
        "port 0 of type 2 does not divide its arguments among the rows as the program does.",
    ),
    "another class": (read(1, value_class=1), "port 0 of type 2 reads class 1, but output 0 of node 4 is in class 0."),
    "a wrong gather index": (
        read(0, index=ints(0, 1, 2, 6, 4, 2)),
        "port 0 of type 1 does not gather the class rows of its arguments: number 4 is 4, expected 3.",
    ),
    "an empty argument that is read": (
        read(0, index=ints(0, 1, 2, 5, 3, 2)),
        "port 0 of type 1 does not gather the class rows of its arguments: number 3 is 5, expected 6.",
    ),
    "recurrent and not said so": (
        read(0, recurrent=False),
        "port 0 of type 1 says it is not recurrent, but it reads a row of its own group.",
    ),
    "said to be recurrent": (
        read(1, recurrent=True),
        "port 0 of type 2 says it is recurrent, but it reads no row of its own group.",
    ),
    "pieces that are not the steps": (
        read(0, bounds=ints(0, 1, 3)),
        "port 0 of type 1 is cut at rows 0 1 3; expected the steps of its type, 0 2 3.",
    ),
    "a piece without a slice": (read(0, slices=ints(-1)), "port 0 of type 1 has 1 slice for 2 pieces."),
    "a slice that is none": (
        read(0, slices=ints(0, -1)),
        "piece 0 of port 0 of type 1 says it is a slice from row 0, but it is not.",
    ),
    "a return that is missing": (without_return, "the return from port 0 of type 2 to group 1 is missing."),
    "a return to nowhere": (
        return_to_nowhere,
        "the return from port 0 of type 2 to group 0 exists, but nothing is read there.",
    ),
    "a return of another port": (
        back((2, 0, 1), port=1),
        "the return from port 0 of type 2 to group 1 says it is from port 1 of type 2 to group 1.",
    ),
    "a return to other rows": (
        back((2, 0, 1), first=2),
        "the return from port 0 of type 2 to group 1 goes to class rows 2:6; the group writes 3:6.",
    ),
    "a gradient that comes back twice": (
        back((2, 0, 1), index=ints(0, 0, 0)),
        "the return from port 0 of type 2 to group 1 does not bring every gradient row back, in order, to "
        "the class row it was read from.",
    ),
    "gradients of other rows": (
        back((2, 0, 1), offsets=ints(0, 1, 2, 3)),
        "the return from port 0 of type 2 to group 1 does not divide the gradient rows among the class rows as they were read.",
    ),
    "gradients that are not counted": (
        back((2, 0, 1), count=1),
        "the return from port 0 of type 2 to group 1 brings back 1 gradient row, it says, but there are 3.",
    ),
    "single rows of many": (
        back((2, 0, 1), single=ints(0, 2, 1)),
        "the return from port 0 of type 2 to group 1 has single rows, but some row was read twice.",
    ),
    "a return in other pieces": (
        back((1, 0, 1), bounds=ints(0, 1, 3)),
        "the return from port 0 of type 1 to group 1 is not cut into the steps of the group.",
    ),
    "a return with a slice too few": (
        back((1, 0, 1), slices=ints(-1)),
        "the return from port 0 of type 1 to group 1 does not have one slice and one nothing for each of its 2 pieces.",
    ),
    "a gradient that is dropped": (
        back((1, 0, 1), nothing=ints(1, 1)),
        "piece 0 of the return from port 0 of type 1 to group 1 says nothing comes back, but something does.",
    ),
    "a return that is no slice": (
        back((1, 0, 1), slices=ints(4, -1)),
        "piece 0 of the return from port 0 of type 1 to group 1 says it is a slice, but not every class row "
        "has one gradient row.",
    ),
}


# The plan of the chains: first 0 3 | next 1 4, then 2; class rows 0 to 4 in this order.
BROKEN_CHAINS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a slice from elsewhere": (
        read(0, slices=ints(1, 2)),
        "piece 0 of port 0 of type 1 says it is a slice from row 1, but it is not.",
    ),
    "a slice that is not said to be one": (
        read(0, slices=ints(0, -1)),
        "piece 1 of port 0 of type 1 is a slice from row 2, but does not say so.",
    ),
    "another single row": (
        back((1, 0, 0), single=ints(1, 0)),
        "the return from port 0 of type 1 to group 0 has a single row that is not the one gradient row of "
        "its class row, or the row of zeros for none.",
    ),
    "single rows that are missing": (
        back((1, 0, 0), single=None),
        "the return from port 0 of type 1 to group 0 lacks single rows, but no row was read twice.",
    ),
    "a returning slice from elsewhere": (
        back((1, 0, 0), slices=ints(1)),
        "piece 0 of the return from port 0 of type 1 to group 0 says it is a slice from row 1, but it is not.",
    ),
    "a returning slice that is not said to be one": (
        back((1, 0, 0), slices=ints(-1)),
        "piece 0 of the return from port 0 of type 1 to group 0 is a slice from row 0, but does not say so.",
    ),
    "a gradient from nowhere": (
        back((1, 0, 1), nothing=ints(0, 0)),
        "piece 1 of the return from port 0 of type 1 to group 1 says something comes back, but nothing does.",
    ),
}
