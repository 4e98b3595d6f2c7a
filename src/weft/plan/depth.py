r"""Depth: one step for every type at every level (TensorFlow Fold's rule; Looks et al. 2017, Deep learning with dynamic
computation graphs).

The rule: nodes of the same type and the same level run together, levels in order.

    level 2                    node        step 5: node
                              /    \
    level 1        node   classify  leaf   step 2: classify   step 3: leaf   step 4: node
                  /    \      |      |
    level 0    leaf   leaf  leaf   embed   step 0: embed      step 1: leaf

Cost: O(nodes). It loses where nodes of one type need not run at their own level: above, both `leaf` steps could be one after
`embed`, and a classifier on every node of a tree runs once for every level of the tree.
"""

from __future__ import annotations

import numpy as np

from weft.graph.program import Ints


def depth_steps(type: Ints, level: Ints) -> Ints:
    """The step of every node: consecutive numbers, ordered by level, then by type.

    >>> import numpy as np
    >>> depth_steps(np.array([0, 0, 1, 0], np.int32), np.array([0, 0, 1, 1], np.int32)).tolist()
    [0, 0, 2, 1]
    """
    types = int(type.max(initial=-1)) + 1
    key = level.astype(np.int64) * types + type
    bound = int(key.max(initial=-1)) + 1
    if bound > 4 * len(key) + 65536:  # few of many possible pairs occur: a table of all would not be O(nodes)
        sparse: Ints = np.unique(key, return_inverse=True)[1].astype(np.int32)
        return sparse
    occurs = np.zeros(bound, dtype=np.bool_)
    occurs[key] = True
    step: Ints = (np.cumsum(occurs, dtype=np.int32) - np.int32(1))[key]
    return step
