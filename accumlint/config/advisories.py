"""ACC905: framework versions that are known to break the contract, matched where the condition holds.

The advisories are data (``rules/advisories/*.yaml``). Each names the situation in which it bites; a version
alone is never reported. A situation is something seen in the same tree: a window of more than one microbatch
under a Trainer, a pipeline module, an environment variable.
"""

from __future__ import annotations

import ast
import functools
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from accumlint import knowledge
from accumlint.config import joins, wiring
from accumlint.config.dialects import View, recognise, whole
from accumlint.config.joins import Tree
from accumlint.config.names import report
from accumlint.config.sources.dependencies import Pin
from accumlint.config.sources.script import Script
from accumlint.config.tree import Document, Mark
from accumlint.findings import Confidence, Finding, Severity

Place = tuple[str, Mark, str]


@dataclass(frozen=True)
class Advisory:
    package: str
    identifier: str
    affected: SpecifierSet
    fixed: str
    situation: str
    effect: str
    advice: str
    reference: str
    severity: Severity


@dataclass(frozen=True)
class Package:
    """One package: the releases that were known when its advisories were written, and the advisories."""

    name: str
    releases: tuple[Version, ...]
    advisories: tuple[Advisory, ...]


def parse_package(stem: str, data: Mapping[str, Any]) -> Package:
    """One file of ``rules/advisories``; raises :class:`KnowledgeError` naming it when malformed."""
    try:
        advisories = tuple(
            Advisory(
                package=data["package"],
                identifier=item["id"],
                affected=SpecifierSet(item["affected"]),
                fixed=str(item.get("fixed") or ""),
                situation=item["situation"],
                effect=item["effect"],
                advice=item["advice"],
                reference=item["reference"],
                severity=Severity[item["severity"].upper()],
            )
            for item in data["advisories"]
        )
        releases = tuple(sorted(Version(v) for v in data["releases"].split()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise knowledge.KnowledgeError(f"advisories/{stem}.yaml: {error!r}") from error
    unknown = [a.situation for a in advisories if a.situation not in SITUATIONS]
    if unknown:
        raise knowledge.KnowledgeError(f"advisories/{stem}.yaml: no situation {unknown[0]!r}")
    return Package(data["package"], releases, advisories)


@functools.cache
def packages() -> dict[str, Package]:
    found = [parse_package(stem, data) for stem, data in knowledge.folder("advisories")]
    return {package.name: package for package in found}


def installed(pin: Pin, package: Package) -> tuple[Version, Confidence] | None:
    """The version that a pin gives: the exact one, or the newest known below a stated upper bound."""
    if pin.version is not None:
        return pin.version, Confidence.CERTAIN
    if not any(part.operator in ("<", "<=", "~=", "==") for part in pin.specifier):
        return None  # open above: whatever is newest, which this list cannot know
    allowed = [version for version in package.releases if version in pin.specifier]
    return (allowed[-1], Confidence.CONDITIONAL) if allowed else None


_PARSERS = re.compile("HfArgumentParser|TrlParser")


# -- situations: what a tree must show for an advisory to matter ------------------------------------


# what stands in a script that builds TrainingArguments, a Trainer or one of TRL's configurations
_TRAINERS = (b"Trainer", b"TrainingArguments", b"trl")


def trainer_views(tree: Tree) -> list[View]:
    """Everything that ends in TrainingArguments: files, launch lines, constructor calls."""
    found = [
        view
        for path in sorted(tree.views)
        for view in tree.views[path]
        if view.dialect.name in ("training-arguments", "llamafactory", "axolotl")
    ]
    for launch in tree.launches:
        path = joins.script_of_launch(tree, launch)
        if not path or not _PARSERS.search(tree.scripts.text(path)):
            continue  # the flags of another script may only be named alike
        if not any(c.short in ("HfArgumentParser", "TrlParser") for c in tree.scripts[path].calls):
            continue
        document = Document(launch.path, "launch", (launch.table(),))
        found += [view for view in recognise(document) if view.dialect.name == "training-arguments"]
    for script in tree.scripts.naming(*_TRAINERS):
        found += [
            view for view in wiring.constructor_views(script) if view.dialect.name == "training-arguments"
        ]
    return found


def _windowed(tree: Tree) -> list[View]:
    """Trainer runs with a window. A recipe counts only where a Trainer can read it: names of keys are shared."""
    if tree.windowed is None:
        scripts = any(path.endswith(".py") for path in tree.paths)
        uses = not scripts or any(_imports_trainer(script) for script in tree.scripts.naming(*_TRAINERS))
        tree.windowed = [
            view
            for view in trainer_views(tree)
            if (view.number("accumulation") or 1) > 1
            and (uses or view.dialect.name in ("llamafactory", "axolotl"))
        ]
    return tree.windowed


def _imports_trainer(script: Script) -> bool:
    names = set(script.imports.values())
    return any(
        name.startswith("trl.")
        or (name.startswith("transformers.") and re.search(r"Train(er|ingArguments)$", name))
        for name in names
    )


_TOKEN_LOSS = re.compile(
    r"ForCausalLM|ForSeq2Seq|ForConditionalGeneration|DataCollatorForLanguageModeling|IGNORE_(TOKEN|INDEX)|SFTTrainer|-100\b|DataCollatorForSupervised"
)


def trainer_tokens(tree: Tree) -> Place | None:
    """A Trainer run with a window whose script (if it is here) shows targets that are masked or of varying number."""
    if _unsloth(tree):
        return None
    launched = {launch.path: path for launch in tree.launches if (path := joins.script_of_launch(tree, launch))}
    for view in _windowed(tree):
        path = view.path if view.path in tree.scripts else launched.get(view.path)
        if view.dialect.name in ("llamafactory", "axolotl") or any(
            _TOKEN_LOSS.search(tree.scripts.text(each)) for each in ((path,) if path else tree.scripts)
        ):
            return _place(view)
    return None


def _place(view: View) -> Place:
    fact = view.facts["accumulation"]
    return view.path, fact.mark, f"{fact.key} {fact.value}"


def _unsloth(tree: Tree) -> bool:
    """Importing unsloth rewrites the Trainer's accumulation, so the Trainer's own history no longer tells."""
    return any(
        name.partition(".")[0] == "unsloth"
        for script in tree.scripts.naming(b"unsloth")
        for name in script.imports.values()
    )


def trainer_accumulation(tree: Tree) -> Place | None:
    if _unsloth(tree):
        return None
    return next((_place(view) for view in _windowed(tree)), None)


def trainer_smoothing(tree: Tree) -> Place | None:
    for view in _windowed(tree):
        entry = view.entry("label_smoothing_factor")
        value = view.value("label_smoothing_factor")
        if (
            entry is not None
            and isinstance(value, (int, float))
            and not isinstance(value, bool)
            and value > 0
        ):
            return view.path, entry.mark, f"label_smoothing_factor {value}"
    return None


def trainer_own_loss(tree: Tree) -> Place | None:
    """A Trainer subclass whose ``compute_loss`` takes no part in the window's count."""
    if _unsloth(tree) or not _windowed(tree):
        return None
    for script in tree.scripts.naming(b"compute_loss"):
        for node in script.nodes:
            if not isinstance(node, ast.ClassDef) or not any(
                script.qualified(b).rpartition(".")[2].endswith("Trainer") for b in node.bases
            ):
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "compute_loss":
                    body = ast.dump(method)
                    if (
                        body.count("num_items_in_batch") <= 1
                        and "'super'" not in body
                        and "model_accepts_loss_kwargs" not in ast.dump(node)
                    ):
                        return script.path, script.mark(method), "compute_loss returns its own mean"
    return None


_HEADS = re.compile(
    r"(AutoModelFor|Bert|Roberta|Llama|T5|Bart)\w*(SequenceClassification|TokenClassification|MaskedLM|Seq2SeqLM|ConditionalGeneration)$"
)


def trainer_plain_head(tree: Tree) -> Place | None:
    """A stock head whose loss is a plain mean although its forward takes ``**kwargs`` (measured for BERT, Llama, T5, BART)."""
    if _unsloth(tree) or not _windowed(tree):
        return None
    for script in tree.scripts.naming(b"from_pretrained", b"from_config"):
        if not wiring.training_arguments(script):
            continue
        for call in script.calls:
            parts = call.name.split(".")
            if parts[-1] in ("from_pretrained", "from_config") and len(parts) > 1 and _HEADS.match(parts[-2]):
                return script.path, call.mark, f"{parts[-2]} is trained here"
    return None


def trainer_environment(tree: Tree) -> Place | None:
    """The launcher's variable beside a Trainer that divides by itself, without DeepSpeed."""
    if not _windowed(tree) or any(tree.view(path, "deepspeed") for path in tree.views):
        return None
    for launch in tree.launches:
        env = launch.env.get(wiring.ENV_STEPS)
        if env is not None and env.known and (whole(env.text) or 1) > 1:
            return launch.path, env.mark, f"{wiring.ENV_STEPS}={env.text}"
    for script in tree.scripts.naming(wiring.ENV_STEPS.encode()):
        value = script.environ.get(wiring.ENV_STEPS)
        if value is not None and (whole(value.value) or 1) > 1:
            return script.path, value.mark, f"{wiring.ENV_STEPS} is set here"
    return None


def _deepspeed_views(tree: Tree) -> list[View]:
    return [
        view for path in sorted(tree.views) for view in tree.views[path] if view.dialect.name == "deepspeed"
    ]


def deepspeed_pipeline(tree: Tree) -> Place | None:
    windowed = [view for view in _deepspeed_views(tree) if (view.number("accumulation") or 1) > 1]
    if not windowed:
        return None
    for script in tree.scripts.naming(b"PipelineModule", b"train_batch"):
        for call in script.calls:
            if call.short in ("PipelineModule", "train_batch") and "deepspeed" in script.text:
                return script.path, call.mark, "a pipeline is trained here"
    return None


def deepspeed_wide_sum(tree: Tree) -> Place | None:
    for view in _deepspeed_views(tree):
        entry = view.entry("data_types.grad_accum_dtype")
        if entry is None or view.value("data_types.grad_accum_dtype") not in ("fp32", "float32"):
            continue
        if (
            view.value("bf16.enabled") is True
            and view.number("stage") == 1
            and (view.number("accumulation") or 1) > 1
        ):
            return view.path, entry.mark, "grad_accum_dtype fp32 under bf16 and ZeRO stage 1"
    return None


def deepspeed_unmanaged(tree: Tree) -> Place | None:
    for view in _deepspeed_views(tree):
        entry = view.entry("managed_gradient_accumulation")
        if entry is not None and entry.value is False:
            return view.path, entry.mark, "managed_gradient_accumulation false"
    return None


def deepspeed_manual_boundary_offload(tree: Tree) -> Place | None:
    """Boundaries set by hand with the engine's own count at 1, and optimizer state on the CPU."""
    for script in tree.scripts.naming(b"set_gradient_accumulation_boundary"):
        calls = [c for c in script.calls if c.short == "set_gradient_accumulation_boundary"]
        for path in joins.deepspeed_of_script(tree, script.path) if calls else ():
            view = tree.view(path, "deepspeed")
            if view is None or view.number("stage") not in (1, 2) or (view.number("accumulation") or 1) != 1:
                continue
            if view.value("zero_optimization.offload_optimizer.device") == "cpu":
                return script.path, calls[0].mark, "window boundaries are set by hand here"
    return None


def deepspeed_no_sync(tree: Tree) -> Place | None:
    for script in tree.scripts.naming(b"no_sync"):
        engines = {call.assigned[0] for call in wiring.deepspeed_inits(script) if call.assigned}
        for call in script.calls:
            parts = call.name.split(".")
            if len(parts) > 1 and parts[-1] == "no_sync" and parts[-2] in engines:
                return script.path, call.mark, "no_sync() of the engine is used here"
    return None


def axolotl_accumulation(tree: Tree) -> Place | None:
    return next((_place(view) for view in _windowed(tree) if view.dialect.name == "axolotl"), None)


def preference_accumulation(tree: Tree) -> Place | None:
    """A preference trainer of TRL (DPO, CPO, BCO, KTO, ORPO, reward) with a window."""
    if not _windowed(tree):
        return None
    for script in tree.scripts.naming(b"Trainer"):
        for call in script.calls:
            if call.name.startswith("trl.") and re.fullmatch(r"(DPO|CPO|BCO|KTO|ORPO|Reward)Trainer", call.short):
                return script.path, call.mark, f"{call.short} is used here"
    return None


SITUATIONS: dict[str, Callable[[Tree], Place | None]] = {
    "trainer-accumulation": trainer_accumulation,
    "trainer-tokens": trainer_tokens,
    "trainer-label-smoothing": trainer_smoothing,
    "trainer-own-loss": trainer_own_loss,
    "trainer-plain-head": trainer_plain_head,
    "trainer-environment": trainer_environment,
    "deepspeed-pipeline": deepspeed_pipeline,
    "deepspeed-wide-sum": deepspeed_wide_sum,
    "deepspeed-unmanaged": deepspeed_unmanaged,
    "deepspeed-manual-boundary-offload": deepspeed_manual_boundary_offload,
    "deepspeed-no-sync": deepspeed_no_sync,
    "axolotl-accumulation": axolotl_accumulation,
    "preference-accumulation": preference_accumulation,
}


def project_folder(path: str) -> str:
    """The folder whose code a dependency file speaks for; ``requirements/train.txt`` speaks for its parent."""
    folder = posixpath.dirname(path)
    if posixpath.basename(folder) in (
        "requirements",
        "constraints",
        "docker",
        "envs",
        "environments",
        ".devcontainer",
    ):
        folder = posixpath.dirname(folder)
    return folder


def match(tree: Tree, pins: list[Pin]) -> list[Finding]:
    """The advisories that the pinned versions meet while their situation holds in the tree."""
    findings: list[Finding] = []
    places: dict[tuple[str, str], Place | None] = {}
    scopes: dict[str, Tree] = {}
    for pin in pins:
        package = packages().get(pin.package)
        got = installed(pin, package) if package is not None else None
        if package is None or got is None:
            continue
        version, confidence = got
        for advisory in package.advisories:
            if not advisory.affected.contains(version, prereleases=True):
                continue
            folder = project_folder(pin.path)
            if folder not in scopes:
                scopes[folder] = tree.below(folder)
            asked = (folder, advisory.situation)
            if asked not in places:
                places[asked] = SITUATIONS[advisory.situation](scopes[folder])
            place = places[asked]
            if place is None:
                continue
            fixed = f"; fixed in {advisory.fixed}" if advisory.fixed else ""
            findings.append(
                report(
                    "known-bad-version",
                    pin.path,
                    pin.mark,
                    f"{pin.package} {version}: {advisory.effect} ({advisory.reference}){fixed}. {advisory.advice}",
                    severity=advisory.severity,
                    confidence=confidence,
                    evidence={
                        "package": pin.package,
                        "version": str(version),
                        "advisory": advisory.identifier,
                        "affected": str(advisory.affected),
                    },
                    related=[place],
                )
            )
    return findings


@functools.cache
def wanted() -> frozenset[str]:
    """The packages that have advisories (canonical names)."""
    return frozenset(packages())
