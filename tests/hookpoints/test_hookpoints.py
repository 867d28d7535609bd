"""Each hook point is reported as missing when its registration is taken out, and only then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from overlaytool.pin import REPOSITORY

from tests.trees import PINS, applied_tree, on_each_pin, run_in_tree

PROGRAM = REPOSITORY / "scripts" / "overlaytool" / "hookpoints.py"
FLAGS = {
    "--attention-backend",
    "--prefill-attention-backend",
    "--decode-attention-backend",
}
DISPATCH = {"DeepSeek handler", "one-shot MHA", "ragged prefill switch"}
AT_RUN_TIME = {
    *DISPATCH,
    "separate rope in absorbed MLA",
    "DFLASH verify without mask",
    "Sarvam handler",
}


class Mutation(NamedTuple):
    """A replacement in one module, and the points that it takes away."""

    module: str
    old: str
    new: str
    missing: set[str]


PACKAGE = "sglang.srt.layers.attention.flashinfer_mla_compact"
REGISTRY = "sglang.srt.layers.attention.attention_registry"
HANDLERS = "sglang.srt.models.deepseek_common.attention_backend_handler"
DRAFTS = "sglang.srt.speculative.draft_utils"
HYBRID = "sglang.srt.layers.attention.hybrid_attn_backend"
ENGINE = "sglang.srt.entrypoints.engine"
HANDLER = "handle_attention_flashinfer"

MUTATIONS = {
    "nothing": Mutation(REGISTRY, "import", "import", set()),
    "factory's name": Mutation(
        REGISTRY,
        '@register_attention_backend("flashinfer_mla_compact")\n',
        "",
        {"attention registry"},
    ),
    "registration by the factory": Mutation(
        f"{PACKAGE}.factory", "    registration.register()\n", "", AT_RUN_TIME
    ),
    "DeepSeek handler": Mutation(
        f"{PACKAGE}.registration", "deepseek.register(NAME, deepseek_handler)", "pass", DISPATCH
    ),
    "one-shot list": Mutation(
        HANDLERS, '["fa3", "flashinfer", "flashmla"', '["fa3", "flashmla"', {"one-shot MHA"}
    ),
    "literal of the ragged switch": Mutation(
        HANDLERS, '["flashinfer", "flashmla"]', '["flashmla"]', {"ragged prefill switch"}
    ),
    "absorb-core list": Mutation(
        f"{PACKAGE}.registration",
        "separate_rope.append(NAME)",
        "pass",
        {"separate rope in absorbed MLA"},
    ),
    "DFLASH set": Mutation(
        f"{PACKAGE}.registration", " | {BACKEND_CLASS}", "", {"DFLASH verify without mask"}
    ),
    "class name": Mutation(
        f"{PACKAGE}.registration",
        'BACKEND_CLASS = "FlashInferMLACompactAttnBackend"',
        'BACKEND_CLASS = "CompactBackend"',
        {"DFLASH verify without mask"},
    ),
    "Sarvam handler": Mutation(
        f"{PACKAGE}.registration",
        "sarvam.register(NAME, sarvam_handler)",
        "pass",
        {"Sarvam handler"},
    ),
    "a door of upstream": Mutation(
        HANDLERS,
        HANDLER,
        "renamed",
        {"attention registry", "draft decode", "draft extend", *AT_RUN_TIME},
    ),
    "draft decode": Mutation(
        DRAFTS,
        '"flashinfer_mla_compact": self._create_flashinfer_mla_compact_decode_backend,',
        "",
        {"draft decode"},
    ),
    "draft extend": Mutation(
        DRAFTS,
        '"flashinfer_mla_compact": self._create_flashinfer_mla_compact_prefill_backend,',
        "",
        {"draft extend"},
    ),
    "MHA backend of a draft": Mutation(
        f"{PACKAGE}.factory",
        "FlashInferMultiStepDraftBackend as",
        "FlashInferAttnBackend as",
        {"draft decode"},
    ),
    "delegation by split backends": Mutation(
        HYBRID, "def init_mha_chunk_metadata(", "def renamed(", {"split prefill and decode"}
    ),
}

CHOICES = 'add_attention_backend_choices(["flashinfer_mla_compact"])'
CHUNKED = 'add_chunked_prefix_cache_attention_backend("flashinfer_mla_compact")'
DRAFT_HELP = '"Attention backend for speculative decoding drafting."'
VERSION_CHECK = Mutation(
    ENGINE,
    'in ("flashinfer", "flashinfer_mla_compact")',
    '== "flashinfer"',
    {"FlashInfer version check"},
)
# From each of these releases on.
SINCE = {
    "0.5.9": {
        "choices": Mutation("sglang.srt.server_args", CHOICES, "", FLAGS),
        "chunked list": Mutation(
            "sglang.srt.model_executor.model_runner", CHUNKED, "", {"chunked prefix cache"}
        ),
        "choices of the draft flag": Mutation(
            "sglang.srt.server_args",
            f"help={DRAFT_HELP}",
            'help="", choices=["triton"]',
            {"--speculative-draft-attention-backend"},
        ),
        "version check": VERSION_CHECK,
    },
    "0.5.17": {
        "choices": Mutation("sglang.srt.server_args", CHOICES, "", FLAGS),
        "chunked list": Mutation("sglang.srt.server_args", CHUNKED, "", {"chunked prefix cache"}),
        "choices of the draft flag": Mutation(
            "sglang.srt.server_args",
            DRAFT_HELP,
            'Arg(help="", choices=["triton"])',
            {"--speculative-draft-attention-backend"},
        ),
        "version check": VERSION_CHECK,
    },
    "0.5.20": {
        "choices": Mutation("sglang.srt.arg_groups.choices", CHOICES, "", FLAGS),
        "chunked list": Mutation(
            "sglang.srt.arg_groups.choices", CHUNKED, "", {"chunked prefix cache"}
        ),
        "choices of the draft flag": Mutation(
            "sglang.srt.arg_groups.fields.spec",
            f"help={DRAFT_HELP}",
            'help="", choices=["triton"]',
            {"--speculative-draft-attention-backend"},
        ),
        "version check": Mutation(
            ENGINE,
            'or "flashinfer_mla_compact" in attention_backends_of(resolved_view(cfg))',
            "",
            {"FlashInfer version check"},
        ),
        "stamp of the draft": Mutation(
            DRAFTS,
            '("flashinfer_mla_compact", create_draft_decode_backend(self))',
            '("flashinfer", create_draft_decode_backend(self))',
            {"draft decode"},
        ),
    },
}


# What looks names up in a feature that the release does not have.
WITHOUT = {"0.5.9": {"DFLASH verify without mask", "Sarvam handler"}}


def of_release(pin: str) -> dict[str, Mutation]:
    """All mutations that fit a pin: the general ones, and the latest that are not newer."""
    numbers = [int(part) for part in pin.split(".")]
    older = [since for since in SINCE if [int(part) for part in since.split(".")] <= numbers]
    fitting = MUTATIONS | SINCE[older[-1]]
    there = {label: m.missing - WITHOUT.get(pin, set()) for label, m in fitting.items()}
    return {label: m._replace(missing=there[label]) for label, m in fitting.items()}


CASES = [(pin, label) for pin in PINS for label in of_release(pin)]


class Look(NamedTuple):
    code: int
    output: str

    @property
    def missing(self) -> set[str]:
        lines = self.output.splitlines()
        return {line[9:].split("  ")[0] for line in lines if line.startswith("MISSING")}


Looks = dict[str, dict[str, Look]]


@pytest.fixture(scope="module")
def looks() -> Looks:
    """What the program says under each mutation, on every pin."""
    return on_each_pin(_look)


def _look(release: str) -> dict[str, Look]:
    replacements = {label: mutation[:3] for label, mutation in of_release(release).items()}
    runner = Path(__file__).with_name("mutate.py")
    run = run_in_tree(applied_tree(release), runner, PROGRAM, stdin=json.dumps(replacements))
    assert run.returncode == 0, run.stderr
    return {label: Look(*answer) for label, answer in json.loads(run.stdout).items()}


@pytest.mark.parametrize(("release", "label"), CASES)
def test_without_a_registration_its_points_and_no_others_are_missing(
    looks: Looks, release: str, label: str
) -> None:
    expected = of_release(release)[label].missing
    look = looks[release][label]
    assert look.missing == expected, look.output
    assert look.code == (1 if expected else 0)


def test_every_point_is_taken_away_by_some_mutation(looks: Looks, release: str) -> None:
    listed = {line[9:].split("  ")[0] for line in looks[release]["nothing"].output.splitlines()}
    removed = [mutation.missing for mutation in of_release(release).values()]
    assert listed == set().union(*removed)


def test_a_door_that_is_gone_is_named(looks: Looks, release: str) -> None:
    output = looks[release]["a door of upstream"].output
    assert f"this sglang has no {HANDLERS}.{HANDLER}" in output


def test_a_tree_without_sglang_exits_6(tmp_path: Path) -> None:
    run = run_in_tree(tmp_path, PROGRAM, "--tree", tmp_path)
    assert run.returncode == 6
    assert "cannot import the tree" in run.stderr
    assert run.stdout == ""
