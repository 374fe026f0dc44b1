"""A line on standard error that counts finished requests."""

from __future__ import annotations

import sys
import time

# Seconds between two updates of the line.
INTERVAL = 0.1


class Bar:
    def __init__(self, total: int, is_shown: bool) -> None:
        self.total, self.done = total, 0
        self.is_shown = is_shown and total > 0
        self.started = self.shown_at = time.monotonic()

    def step(self) -> None:
        self.done += 1
        if self.is_shown and time.monotonic() - self.shown_at >= INTERVAL:
            self._show()

    def end(self) -> None:
        if self.is_shown:
            self._show()
            print(file=sys.stderr)

    def _show(self) -> None:
        self.shown_at = time.monotonic()
        rate = self.done / max(self.shown_at - self.started, 1e-9)
        filled = 20 * self.done // self.total
        bar = "#" * filled + "." * (20 - filled)
        print(f"\r[{bar}] {self.done}/{self.total}, {rate:.1f}/s ", end="", file=sys.stderr, flush=True)
