"""One finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass

WELL, FIX, NOTE = "ok", "fix", "note"


@dataclass(frozen=True)
class Line:
    """One finding: `mark` is "ok", "fix" (with a remedy) or "note" (not judged)."""

    mark: str
    subject: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.mark:<5} {self.subject:<18} {self.found}"
        return f"{text}: {self.remedy}" if self.remedy else text
