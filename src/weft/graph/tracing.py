"""One lock around tracing: it changes what torch does everywhere in the process, so one thread at a time does it."""

from __future__ import annotations

import threading

tracing = threading.RLock()
