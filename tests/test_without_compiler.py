"""Without a compiler everything is computed all the same."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import torch, weft, weft.testing
from examples import parser

model, sentences = parser.example(6)
net = weft.batched(model.double())
for _ in range(3):
    stacks, scores, reduced = net(sentences)
    (stacks.sum() + scores.sum()).backward()
weft.testing.assert_equivalent(model, sentences)
print(reduced.tolist() == [len(sentence) - 1 for sentence in sentences])
"""


def test_values_are_asked_for_in_training_without_a_compiler() -> None:
    environment = os.environ | {"WEFT_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert found.stdout == "True\n", found.stderr
