"""What becomes of a server's arguments: sglang is asked where it can be, a table elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctortool import known_flags, server_arguments
from doctortool.line import FIX, NOTE, WELL, Line

SCRIPTS = str(Path(__file__).parents[1])
SECONDS = 300
# What stands for all cards where none is seen or named: what differs among these is not judged.
CARDS = ("8.9", "9.0", "10.0", "12.0")
_ONE = "server"


@dataclass(frozen=True)
class Server:
    """What is known of a server on one card.

    Attributes:
        named: a flag asks for the backend.
        facts: what the backend asks of the first model that it reads, which is the draft where no
            other flag names it; None where that has no MLA pool.
        draft: the same of a draft next to it; None for no such.
        dtype_given: the arguments state a cache dtype.
        runs: another backend that sglang runs whatever is asked for, as for DeepSeek-V4.
        refusal: what sglang refuses the arguments with.
        unjudged: why this can't be told; each a few words.
        heads, pool_tokens, page_size: query heads of a rank and the pool's size, where stated.
    """

    named: bool = True
    facts: Any = None
    draft: Any = None
    dtype_given: bool = True
    runs: str = ""
    refusal: str = ""
    unjudged: tuple[str, ...] = ()
    heads: int | None = None
    pool_tokens: int | None = None
    page_size: int = 1


@dataclass(frozen=True)
class Judged:
    """A server on each card that may be meant; `instead` is why a table decides, if one does."""

    servers: tuple[Server, ...]
    instead: str = ""


def judge(
    executable: str | None, arguments: Sequence[str], cards: Sequence[str], release: str
) -> Judged:
    """Ask the sglang of an interpreter, or the table where `executable` is None or has none.

    Raises `ValueError` with one sentence where the table finds a flag without its value.
    """
    try:
        answers = ask(executable, {_ONE: arguments}, cards)
        return Judged(tuple(answered(answers[card][_ONE]) for card in cards))
    except LookupError as error:
        options = known_flags.parse(arguments)
        return Judged(tuple(tabled(options, card, release) for card in cards), error.args[0])


def ask(
    executable: str | None, runs: Mapping[str, Sequence[str]], cards: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """sglang's answers, {card: {run: answer}}; LookupError says why there are none."""
    if executable is None:
        raise LookupError("the overlay is not applied there")
    devices = {card: [int(part) for part in card.split(".")] for card in cards}
    request = json.dumps({"devices": devices, "runs": runs})
    command = [executable, "-P", "-B", "-m", "doctortool.resolver"]
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), SCRIPTS)))
    print("doctor: asking sglang, which takes its time to start", file=sys.stderr)
    process: Any = {"capture_output": True, "text": True, "timeout": SECONDS}
    try:
        run = subprocess.run(
            command, input=request, env={**os.environ, "PYTHONPATH": path}, check=False, **process
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise LookupError(f"sglang can't be asked there ({error})") from None
    try:
        return dict(json.loads(run.stdout))
    except ValueError:
        last = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        raise LookupError(f"sglang can't be asked there ({last})") from None


def answered(answer: Mapping[str, Any]) -> Server:
    """One answer of sglang's."""
    if "unjudged" in answer:
        return Server(unjudged=(f"sglang can't tell ({_sentence(answer['unjudged'])})",))
    if "error" in answer:
        return Server(refusal=_sentence(answer["error"]))
    support = server_arguments.load("support")
    *target, _ = answer["backends"]
    used = support.NAME in answer["backends"]
    pools = [answer["facts"] if support.NAME in target or not used else None, answer["draft"]]
    facts = [support.Facts(**pool) for pool in pools if pool]
    return Server(
        named=answer["named"],
        facts=facts[0] if facts else None,
        draft=facts[1] if len(facts) > 1 else None,
        dtype_given=answer["dtype_given"],
        runs="" if used else answer["backends"][0],
        heads=answer["heads"],
        pool_tokens=answer["max_total_tokens"],
        page_size=answer["page_size"],
    )


def tabled(options: Any, card: str, release: str) -> Server:
    """What the table says of parsed arguments."""
    support = server_arguments.load("support")
    config = server_arguments.model_config(options) or {"kv_lora_rank": support.KV_LORA_RANK}
    latent = config.get("kv_lora_rank") is not None
    sparse = "index_topk" in config and known_flags.numbers_of(release) >= known_flags.SINCE
    unjudged = server_arguments.unjudged(options, card, release)
    return Server(
        named=server_arguments.names_backend(options),
        facts=server_arguments.facts(options, support, card, release) if latent else None,
        dtype_given=options.kv_cache_dtype != "auto",
        runs="another backend" if sparse and not latent else "",
        unjudged=tuple(unjudged if latent else known_flags.unknown(options, release)),
        heads=server_arguments.query_heads(options),
        pool_tokens=options.max_total_tokens,
        page_size=options.page_size,
    )


def lines(judged: Judged, stock: bool) -> Iterator[Line]:
    """The findings that hold on every card; `stock` where the strategy leaves all to sglang."""
    if judged.instead:
        yield Line(NOTE, "arguments", f"judged by a table, as {judged.instead}")
    each = [list(_lines(server, stock)) for server in judged.servers]
    if all(one == each[0] for one in each):
        yield from each[0]
        return
    yield from (line for line in each[0] if line.mark != WELL and all(line in one for one in each))
    yield Line(NOTE, "server", "not judged: the rest depends on the card, name one: --capability")


def _lines(server: Server, stock: bool) -> Iterator[Line]:
    if server.refusal:
        yield Line(FIX, "server", "sglang refuses these arguments", server.refusal)
        return
    yield from (Line(NOTE, "server", f"not judged: {words}") for words in server.unjudged)
    support = server_arguments.load("support")
    if not server.named:
        remedy = f"add --attention-backend {support.NAME}"
        yield Line(FIX, "server", f"no attention-backend flag names {support.NAME}", remedy)
    if server.named and server.runs:
        found = f"sglang runs {server.runs} for this model: {support.NAME} does not serve it"
        yield Line(FIX, "model", found, "leave the attention backend to sglang")
    elif server.unjudged:
        return
    elif server.facts is None:
        found = f"no MLA model: {support.NAME} is sglang's flashinfer backend there"
        yield Line(NOTE, "model", found)
    elif stock:
        yield Line(NOTE, "server", "nothing is refused: the strategy is sglang's own code")
    else:
        yield from _pools(support, server)


def _uncast(server: Server) -> Iterator[Line]:
    """Of a pool that needs no cast, so that stock serves it, whatever else is asked for."""
    found = f"a {server.facts.pool_dtype} pool needs no cast: the backend is stock FlashInfer MLA"
    if server.dtype_given:
        yield Line(NOTE, "server", found)
    else:
        yield Line(FIX, "server", found, "add --kv-cache-dtype fp8_e4m3 to halve the cache")


def _pools(support: Any, server: Server) -> Iterator[Line]:
    reasons = _reasons(support, server.facts)
    own = [one for one in _reasons(support, server.draft) if one not in reasons]
    for reason in (*reasons, *(f"of the draft, {one}" for one in own)):
        what, _, remedy = reason.partition(": ")
        yield Line(FIX, "server", what, remedy)
    if not support.casts_keys(server.facts):
        yield from _uncast(server)
    elif not reasons + own and server.named:
        yield Line(WELL, "server", "nothing in these arguments is refused")
    for notice in support.notices(server.facts) if support.casts_keys(server.facts) else ():
        yield Line(NOTE, "server", notice)


def _reasons(support: Any, facts: Any) -> list[str]:
    """Why the backend refuses a pool; of one that stock serves it asks nothing."""
    refused = facts is not None and support.casts_keys(facts)
    return list(support.refusals(facts)) if refused else []


def _sentence(text: str) -> str:
    return " ".join(text.split())
