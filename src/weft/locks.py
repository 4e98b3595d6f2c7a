"""Locks of a process that may fork, as loaders do for their workers.

Threads do not survive a fork, and a lock that one of them held would stay closed for ever; so a child finds all locks open but
those that its own thread holds.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.RLock:
    """A lock that the thread which holds it may take again.

    >>> with lock() as taken:
    ...     taken
    True
    """
    made = threading.RLock()
    _made.add(made)
    return made


def held_over_forks(made: threading.RLock) -> threading.RLock:
    """The same lock, of what must not be forked half-way: a fork waits until no other thread holds it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made


def _open() -> None:
    for each in list(_made):
        if not each._is_owned():
            each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open)
