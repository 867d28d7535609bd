"""Exit codes, and the one exception that carries a sentence for the user."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes shared by all verbs."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    FOREIGN = 4
    VERSION = 5
    UNAVAILABLE = 6
    BUSY = 7
    UNWRITABLE = 8
    REFRESH = 10
    READ = 15
    CONFLICT = 20
    CONTRACT = 30
    UNTRIED = 40
    INTERRUPTED = 130


EXIT_HELP = {
    Exit.OK: "done, or nothing to do",
    Exit.FAILED: "a check failed; or a patch, the series or the lock is unsound or unreadable",
    Exit.USAGE: "usage error",
    Exit.PARTIAL: "partial, or an earlier revision: apply or unapply finishes it",
    Exit.FOREIGN: "foreign: a file is neither pristine nor applied; nothing was written",
    Exit.VERSION: "the tree holds another release than the pin; nothing was written",
    Exit.UNAVAILABLE: "the wheel could not be had, or the tree could not be imported",
    Exit.BUSY: "another process is changing the tree",
    Exit.UNWRITABLE: "the tree cannot be read or written; what could not be put back is named",
    Exit.REFRESH: "refresh: a patch moved, merged, or is upstream",
    Exit.READ: "to be read: upstream changed what the overlay depends on",
    Exit.CONFLICT: "a patch conflicts, fits in several places, or its target is gone",
    Exit.CONTRACT: "broken: the overlay does not fit what upstream has",
    Exit.UNTRIED: "could not be tried; never to be read as clean",
    Exit.INTERRUPTED: "interrupted; run it again to finish",
}


class Refusal(Exception):
    """A sentence that says what is wrong and the remedy, and the exit code that goes with it."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code
