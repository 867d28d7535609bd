"""Work in a forked child, which may import and change what it likes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any


def in_child(answer: Callable[[], Any]) -> Any:
    """What `answer` returns in a forked child, by way of JSON; RuntimeError where it fails."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writer, "w") as stream:
            stream.write(_attempt(answer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.wait()
    found, failure = json.loads(text or '[null, "a child process died"]')
    if failure:
        raise RuntimeError(failure)
    return found


def _attempt(answer: Callable[[], Any]) -> str:
    """JSON of the answer and of what failed."""
    try:
        return json.dumps([answer(), ""])
    except BaseException as error:  # the child must not run on as its parent
        return json.dumps([None, f"{type(error).__name__}: {error}"])
