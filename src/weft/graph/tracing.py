"""One lock around tracing: it changes what torch does everywhere in the process, so one thread at a time does it."""

from __future__ import annotations

from weft.locks import held_over_forks, lock

tracing = held_over_forks(lock())
