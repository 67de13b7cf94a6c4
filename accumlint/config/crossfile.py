"""ACC902, ACC904 and their kin across files: script ↔ configuration ↔ launch line.

Who wins, raises or is ignored was measured on accelerate 0.13–1.15, transformers 4.45–5.24 and DeepSpeed
0.18–0.19; each function says which fact it rests on. Without a join (see :mod:`joins`) nothing is compared.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence

from accumlint.config import joins, wiring
from accumlint.config.checks import check_arithmetic, run_checks
from accumlint.config.dialects import Fact, View, dialect, recognise, view, whole
from accumlint.config.interpolation import Unresolved
from accumlint.config.joins import Tree
from accumlint.config.names import report
from accumlint.config.sources.launch import Launch
from accumlint.config.sources.script import Call, Script, accumulation_settings, names_accumulation
from accumlint.config.tree import Document, Entry, Mark, Scalar, Table, walk
from accumlint.findings import Confidence, Finding

_PARALLEL_CODE = ("sequence_parallel", "PipelineModule", "mpu=", "pipe.", "tensor_parallel", "mesh_param")
_PARALLEL = (
    "tensor",
    "pipeline",
    "sequence_parallel",
    "context_parallel",
    "model_parallel",
    "tp_size",
    "pp_size",
    "sp_size",
    "cp_size",
    "mp_size",
    "ulysses",
)


@dataclasses.dataclass(frozen=True)
class Side:
    """One source's statement: a number, its place and what to call it."""

    number: int | float | None
    path: str
    mark: Mark
    label: str
    sure: bool = True  # false when a command line may change it
    dest: str = ""  # the argument whose default it is

    @property
    def confidence(self) -> Confidence:
        return Confidence.CERTAIN if self.sure else Confidence.CONDITIONAL


def _side(script: Script, call: Call, keyword: str, default: int | None = None) -> Side | None:
    """What a constructor says about ``keyword``; its default when it says nothing."""
    expression = call.keywords.get(keyword)
    if expression is None:
        if default is None or call.splat:
            return None
        return Side(default, script.path, call.mark, f"{call.short}() (default {default})")
    value = script.value(expression)
    if value is None or isinstance(value.value, bool) or not isinstance(value.value, (int, float)):
        return None
    if value.overridable and value.number == 1:
        return None  # a flag whose default is 1 says nothing about the run
    label, dest = f"{call.short}({keyword}={value.value})", value.name if value.overridable else ""
    return Side(value.value, script.path, script.mark(expression), label, not value.overridable, dest)


def _launched(
    script: Script, call: Call, keyword: str, launches: Sequence[Launch], default: int | None = None
) -> list[Side | None]:
    """What ``keyword`` is in each run: the launch lines' flags where it is an argument, else what the script says."""
    expression = call.keywords.get(keyword)
    value = script.value(expression) if expression is not None else None
    if value is None or not value.overridable or not launches:
        return [_side(script, call, keyword, default)]
    sides: list[Side | None] = []
    for launch in launches:
        stated = _arg_side(launch, value.name, *script.flags.get(value.name, ()))
        mentioned = any(name in launch.args for name in (value.name, *script.flags.get(value.name, ())))
        sides.append(stated if stated is not None or mentioned else _side(script, call, keyword, default))
    return sides


def _fact_side(found: View, role: str) -> Side | None:
    fact = found.facts.get(role)
    if fact is None or not fact.stated or isinstance(fact.value, (str, bool)):
        return None
    return Side(fact.value, found.path, fact.mark, f"{fact.key} {fact.value}")


def _arg_side(launch: Launch, *names: str) -> Side | None:
    for name in names:
        arg = launch.args.get(name)
        if arg is not None:
            number = whole(arg.text) if arg.known else None
            return Side(number, launch.path, arg.mark, f"--{name} {arg.text}") if number is not None else None
    return None


def _conflict(name: str, at: Side, other: Side, message: str) -> Finding:
    return report(
        name,
        at.path,
        at.mark,
        message,
        confidence=min(at.confidence, other.confidence),
        evidence={"stated": [at.number, other.number]},
        related=[(other.path, other.mark, other.label)],
    )


# -- TrainingArguments against DeepSpeed ------------------------------------------------------------


def compare_trainer(
    deepspeed: View,
    steps: Side | None,
    micro: Side | None,
    clip: Side | None,
    most: Side | None = None,
    ranks: int | None = None,
) -> list[Finding]:
    """TrainingArguments against a DeepSpeed file: every number must be equal or "auto".

    transformers/integrations/deepspeed.py ``trainer_config_process`` raises "Please correct the following
    DeepSpeed config values that mismatch TrainingArguments values" at the start of training.
    """
    findings = list(strict_json(deepspeed))
    theirs = _fact_side(deepspeed, "accumulation")
    if steps and theirs and steps.number != theirs.number:
        message = (
            f"the DeepSpeed configuration accumulates {theirs.number} microbatches, {steps.label} says {steps.number}: "
            'the Trainer refuses the pair; write "auto" here'
        )
        findings.append(_conflict("config-accum-conflict", theirs, steps, message))
    theirs_micro = _fact_side(deepspeed, "micro")
    if micro and theirs_micro and micro.number != theirs_micro.number:
        message = f"the DeepSpeed configuration states micro-batch {theirs_micro.number}, {micro.label} says {micro.number}: the Trainer refuses the pair"
        findings.append(_conflict("config-batch-mismatch", theirs_micro, micro, message))
    total = _fact_side(deepspeed, "global")
    if (
        total
        and steps
        and micro
        and theirs is None
        and theirs_micro is None
        and steps.number
        and micro.number
    ):
        product = steps.number * micro.number
        if ranks is not None and total.number != product * ranks:
            message = f"train_batch_size {total.number} is not {micro.label} × {steps.label} × {ranks} ranks = {product * ranks}: the Trainer refuses the pair"
            findings.append(_conflict("config-batch-mismatch", total, steps, message))
        elif product and total.number % product:  # type: ignore[operator]
            message = f"train_batch_size {total.number} is not a multiple of {micro.label} × {steps.label} = {product}, for any number of ranks"
            findings.append(_conflict("config-batch-mismatch", total, steps, message))
    theirs_clip = _fact_side(deepspeed, "clip")
    if clip and theirs_clip and clip.number != theirs_clip.number:
        message = f"gradients are clipped at {theirs_clip.number} here and at {clip.number} by {clip.label}: the Trainer refuses the pair"
        findings.append(_conflict("config-clip-conflict", theirs_clip, clip, message))
    findings += compare_schedule(deepspeed, steps, most)
    return findings


def strict_json(deepspeed: View) -> Iterator[Finding]:
    """DeepSpeed reads Hjson; the Trainer and Accelerate read the same file with ``json.load`` (utils/deepspeed.py)."""
    laxity = deepspeed.document.laxity
    if laxity is not None:
        mark = Mark(laxity.line, laxity.column, laxity.line, laxity.column)
        yield report(
            "syntax-error",
            deepspeed.path,
            mark,
            f"{laxity.message}: DeepSpeed would read it, but Accelerate and the Trainer refuse the file",
        )


def compare_schedule(deepspeed: View, steps: Side | None, most: Side | None) -> list[Finding]:
    """A DeepSpeed scheduler moves once per update; a length of updates × K is counted in microbatches."""
    total = _fact_side(deepspeed, "schedule_total")
    if (
        not (total and steps and most and steps.number and most.number)
        or steps.number <= 1
        or most.number <= 0
    ):
        return []
    if total.number != most.number * steps.number:
        return []
    message = (
        f"total_num_steps {total.number} is {most.label} × {steps.number} microbatches; the scheduler moves once per update, "
        f"so the learning rate gets 1/{steps.number} of its way"
    )
    return [_conflict("schedule-length-in-microbatches", total, most, message)]


def _view_sides(found: View) -> tuple[Side | None, Side | None, Side | None, Side | None]:
    steps, micro, clip, most = (
        _fact_side(found, role) for role in ("accumulation", "micro", "clip", "max_steps")
    )
    return steps, micro, clip, most


def script_with_deepspeed(tree: Tree, script: Script, launches: Sequence[Launch]) -> Iterator[Finding]:
    """A script that names a DeepSpeed file, by the engine that it hands the file to."""
    for path in joins.deepspeed_of_script(tree, script.path):
        deepspeed = tree.view(path, "deepspeed")
        assert deepspeed is not None
        for call in wiring.training_arguments(script):
            named = call.keywords.get("deepspeed")
            if named is not None:
                value = script.value(named)
                if value is not None and tree.resolve(value.value, script.path) not in (path, None):
                    continue
            clip, most = _side(script, call, "max_grad_norm"), _side(script, call, "max_steps")
            micros = _launched(script, call, "per_device_train_batch_size", launches)
            counts = _launched(script, call, "gradient_accumulation_steps", launches, 1)
            if call.splat or "gradient_accumulation_steps" in script.stores:
                continue
            for steps, micro in zip(counts, micros * len(counts) if len(micros) == 1 else micros):
                yield from compare_trainer(deepspeed, steps, micro, clip, most)
        yield from _accelerate_plugin(script, deepspeed, launches)
        yield from _deepspeed_engine(script, deepspeed, launches)

def _unless_launched(side: Side | None, launches: Sequence[Launch], name: str) -> Side | None:
    """A script's default is moot when a launch line states the flag; that line is compared by itself."""
    if side is not None and not side.sure and any(name in launch.args for launch in launches):
        return None
    return side


def _accelerate_plugin(script: Script, deepspeed: View, launches: Sequence[Launch]) -> Iterator[Finding]:
    """A plugin made from a file, and an Accelerator with a count.

    accelerate ≥ 1.8: "Gradient accumulation steps mismatch … Using DeepSpeed's value"; 0.23–1.7: two counters,
    no message. Without the key the plugin inserts 1 (utils/dataclasses.py ``DeepSpeedPlugin.__post_init__``).
    """
    plugins = [
        c
        for c in script.calls
        if c.short == "DeepSpeedPlugin" and ("hf_ds_config" in c.keywords or c.node.args)
    ]
    for call in wiring.accelerators(script):
        if not plugins or not ({"deepspeed_plugin", "deepspeed_plugins"} & set(call.keywords)):
            continue
        yield from strict_json(deepspeed)
        for own in _launched(script, call, "gradient_accumulation_steps", launches):
            if own is not None:
                yield from _plugin_against(own, deepspeed)


def _plugin_against(own: Side, deepspeed: View) -> Iterator[Finding]:
    theirs = _fact_side(deepspeed, "accumulation")
    if theirs is not None and own.number != theirs.number:
        message = (
            f"the DeepSpeed configuration accumulates {theirs.number} microbatches, {own.label} says {own.number}: DeepSpeed's value "
            "wins with a warning (accelerate 1.8 and later), or two counters run side by side (0.23 to 1.7)"
        )
        yield _conflict("config-accum-conflict", theirs, own, message)
    elif (
        "accumulation" not in deepspeed.facts
        and deepspeed.entry("accumulation") is None
        and (own.number or 1) > 1
    ):
        yield report(
            "accum-not-wired",
            own.path,
            own.mark,
            f"{own.label} does not reach the engine: the DeepSpeed configuration has no gradient_accumulation_steps, "
            'the plugin inserts 1, and that value wins; add "gradient_accumulation_steps": "auto" there',
            confidence=own.confidence,
            related=[(deepspeed.path, Mark(1, 1, 1, 1), "no gradient_accumulation_steps in this file")],
        )


def _deepspeed_engine(script: Script, deepspeed: View, launches: Sequence[Launch]) -> Iterator[Finding]:
    """A script that drives ``deepspeed.initialize`` itself: its own count, no_sync under ZeRO, per-update schedules."""
    inits = wiring.deepspeed_inits(script)
    if not inits:
        return
    theirs = _fact_side(deepspeed, "accumulation")
    stage = deepspeed.number("stage")
    yield from _sharded_no_sync(
        script,
        inits,
        stage,
        deepspeed.path,
        deepspeed.facts["stage"].mark if "stage" in deepspeed.facts else None,
    )
    if theirs is None or any(key in script.stores for key in ("gradient_accumulation_steps",)):
        return
    for name, value in sorted(accumulation_settings(script).items()):
        if value.number is None or value.number == theirs.number or (value.overridable and value.number == 1):
            continue
        if not script.reads.get(name) and name not in script.arguments or not _drives_window(script, name):
            continue
        side = Side(value.number, script.path, value.mark, f"{name} = {value.number}", not value.overridable)
        if _unless_launched(side, launches, name) is None:
            continue
        message = f"the DeepSpeed configuration accumulates {theirs.number} microbatches and the engine follows it; {name} in the script is {value.number}"
        yield _conflict("config-accum-conflict", theirs, side, message)
        return


def _drives_window(script: Script, name: str) -> bool:
    """Whether the script's own count takes part in arithmetic, and is not written into the engine's configuration."""
    for node in script.reads.get(name, ()):
        parent = script.parents.get(node)
        if isinstance(parent, (ast.Dict, ast.keyword)):
            return False
    return any(
        isinstance(script.parents.get(node), (ast.BinOp, ast.AugAssign, ast.Compare, ast.Call))
        for node in script.reads.get(name, ())
    )


def _sharded_no_sync(
    script: Script, inits: list[Call], stage: int | None, path: str, mark: Mark | None
) -> Iterator[Finding]:
    """``engine.no_sync()`` asserts that the stage is below 2 (deepspeed/runtime/engine.py ``no_sync``)."""
    if stage is None or stage < 2 or mark is None:
        return
    engines = {call.assigned[0] for call in inits if call.assigned and call.assigned[0]}
    for call in script.calls:
        parts = call.name.split(".")
        if len(parts) >= 2 and parts[-1] == "no_sync" and parts[-2] in engines:
            yield report(
                "no-sync-with-sharded-grads",
                script.path,
                call.mark,
                f"no_sync() on an engine with ZeRO stage {stage}: gradients are partitioned and must be reduced in every backward; "
                "DeepSpeed asserts at the first window",
                related=[(path, mark, f"stage {stage}")],
            )


def inline_deepspeed(tree: Tree, script: Script, launches: Sequence[Launch]) -> Iterator[Finding]:
    """DeepSpeed configurations that a script holds as a dict: audited as if they were a file."""
    for call in script.calls:
        keyword = {"initialize": "config", "DeepSpeedPlugin": "hf_ds_config"}.get(call.short, "deepspeed")
        expression = call.keywords.get(keyword) or call.keywords.get("config_params")
        if expression is None or call.short == "initialize" and call.name != "deepspeed.initialize":
            continue
        table = script.dict_table(expression)
        if table is None or table.get("**") is not None:
            continue
        document = Document(script.path, "python-dict", (table,), script.text)
        for found in recognise(document):
            if found.dialect.name != "deepspeed" or any(
                key in script.stores
                for key in (
                    "gradient_accumulation_steps",
                    "train_batch_size",
                    "train_micro_batch_size_per_gpu",
                )
            ):
                continue
            yield from check_arithmetic(found)
            yield from run_checks(found)
            if call in wiring.training_arguments(script):
                steps = _side(script, call, "gradient_accumulation_steps", 1)
                yield from compare_trainer(
                    found,
                    steps,
                    _side(script, call, "per_device_train_batch_size"),
                    _side(script, call, "max_grad_norm"),
                )
            elif call.name == "deepspeed.initialize":
                stage = found.facts.get("stage")
                yield from _sharded_no_sync(
                    script, [call], found.number("stage"), script.path, stage.mark if stage else None
                )

# -- accelerate configurations against scripts -------------------------------------------------------


def accelerate_with_script(tree: Tree, script: Script, launches: Sequence[Launch]) -> Iterator[Finding]:
    """Outside DeepSpeed the launcher's count never reaches ``Accelerator()``; under it, it beats the code's.

    accelerate/utils/launch.py exports ACCELERATE_GRADIENT_ACCUMULATION_STEPS for DeepSpeed only, and
    ``Accelerator.__init__`` prefers that variable to its argument (run on 1.15.0.dev0: env 2, code 8 gives 2).
    """
    for found in joins.accelerate_of_script(tree, script, launches):
        stated = found.entry("gradient_accumulation_steps")
        inner = found.facts.get("accumulation")
        deepspeed = str(found.value("distributed_type")).upper() == "DEEPSPEED"
        number = whole(stated.value) if stated is not None else inner.number if inner is not None else None
        mark = stated.mark if stated is not None else inner.mark if inner is not None else None
        if number is None or mark is None:
            continue
        for call in wiring.accelerators(script):
            if call.splat or any(
                p in call.keywords for p in ("deepspeed_plugin", "gradient_accumulation_plugin")
            ):
                continue
            if stated is not None or not deepspeed:
                if (
                    "gradient_accumulation_steps" not in call.keywords
                    and number > 1
                    and "gradient_accumulation_steps" not in script.stores
                ):
                    yield report(
                        "accum-not-wired",
                        script.path,
                        call.mark,
                        f"Accelerator() is built without gradient_accumulation_steps; the {number} of the launcher's configuration reaches it "
                        "only under DeepSpeed, so windows have 1 microbatch",
                        evidence={"accumulation": number, "engine": "accelerate"},
                        related=[(found.path, mark, f"gradient_accumulation_steps {number} is stated here")],
                    )
                continue
            for own in _launched(script, call, "gradient_accumulation_steps", launches):
                if own is None or own.number == number:
                    continue
                theirs = Side(
                    number, found.path, mark, f"deepspeed_config.gradient_accumulation_steps {number}"
                )
                message = (
                    f"the launcher exports gradient_accumulation_steps {number}, which beats {own.label} without a word: windows have {number} "
                    f"microbatches, not {own.number}"
                )
                yield _conflict("config-accum-conflict", theirs, own, message)
        if deepspeed and stated is None:
            for call in wiring.training_arguments(script):
                if "gradient_accumulation_steps" not in script.stores:
                    for own in _launched(
                        script, call, "gradient_accumulation_steps", launches, 1
                    ):
                        yield from compare_trainer(found, own, None, _side(script, call, "max_grad_norm"))


# -- launch lines ------------------------------------------------------------------------------------


def launch_line(tree: Tree, launch: Launch, script: Script | None) -> Iterator[Finding]:
    """A launch line against the script that it starts, where that is here."""
    yield from _flags(launch)
    named = joins.deepspeed_of_launch(tree, launch)
    own = _arg_side(
        launch,
        "gradient_accumulation_steps",
        "gradient_accumulation",
        "grad_accum_steps",
        "accumulate_grad_batches",
    )
    if named is not None:
        deepspeed = tree.view(named[0], "deepspeed")
        assert deepspeed is not None
        if (
            "per_device_train_batch_size" in launch.args
            or script is not None
            and _parses_arguments(script)
        ):
            yield from compare_trainer(
                deepspeed,
                own,
                _arg_side(launch, "per_device_train_batch_size"),
                _float_side(launch, "max_grad_norm"),
                _arg_side(launch, "max_steps"),
                launch.ranks()[0],
            )
        elif own is not None and launch.options.get("deepspeed_config_file") is None:
            theirs = _fact_side(deepspeed, "accumulation")
            if theirs is not None and theirs.number != own.number and not _writes_steps(script):
                message = f"the DeepSpeed configuration accumulates {theirs.number} microbatches and the engine follows it; the launch line says {own.number}"
                yield _conflict(
                    "config-accum-conflict", theirs, dataclasses.replace(own, sure=False), message
                )
    yield from _launcher_count(tree, launch, script)
    yield from _unknown_flag(launch, script)

def _writes_steps(script: Script | None) -> bool:
    """Whether the script writes its own count into the configuration (then the file's number is not final)."""
    return script is not None and (
        "gradient_accumulation_steps" in script.stores
        or wiring._mentions(script, "gradient_accumulation_steps")
        and "add_config_arguments" not in script.reads
    )


def _float_side(launch: Launch, name: str) -> Side | None:
    arg = launch.args.get(name)
    if arg is None or not arg.known:
        return None
    try:
        return Side(float(arg.text), launch.path, arg.mark, f"--{name} {arg.text}")
    except ValueError:
        return None


def _parses_arguments(script: Script) -> bool:
    """Whether the flags of a launch line are TrainingArguments."""
    return any(c.short in ("HfArgumentParser", "TrlParser") for c in script.calls)


def _flags(launch: Launch) -> Iterator[Finding]:
    """A launch line whose flags are themselves a configuration (Megatron, TrainingArguments, overrides)."""
    table = launch.table()
    count, mark = launch.ranks()
    entries = [e for e in table.entries if e.key != "world_size"]
    if count is not None:
        entries.append(Entry("world_size", mark, Scalar(count, str(count), mark)))
    document = Document(launch.path, "launch", (Table(tuple(entries), table.mark),), "")
    for found in recognise(document):
        yield from check_arithmetic(found)
        yield from run_checks(found)


def _launcher_count(tree: Tree, launch: Launch, script: Script | None) -> Iterator[Finding]:
    """``accelerate launch --gradient_accumulation_steps N`` and the environment variable behind it."""
    if launch.launcher != "accelerate":
        return
    option = launch.options.get("gradient_accumulation_steps")
    number = whole(option.text) if option is not None and option.known else None
    deepspeed = bool({"use_deepspeed", "deepspeed_config_file", "zero_stage"} & set(launch.options))
    config = joins.accelerate_of_launch(tree, launch)
    if config is not None:
        deepspeed = deepspeed or str(config.value("distributed_type")).upper() == "DEEPSPEED"
    elif "config_file" in launch.options:
        return  # a configuration that is not here may say DeepSpeed
    env = launch.env.get(wiring.ENV_STEPS)
    calls = wiring.accelerators(script) if script is not None else []
    if option is not None and number is not None and number > 1 and not deepspeed:
        handed = [c for c in calls if "gradient_accumulation_steps" in c.keywords or c.splat]
        if script is not None and handed:
            side = _side(script, handed[0], "gradient_accumulation_steps")
            if (
                side is not None
                and side.number != number
                and "gradient_accumulation_steps" not in launch.args
            ):
                at = Side(number, launch.path, option.mark, f"--gradient_accumulation_steps {number}")
                message = f"accelerate launch hands its gradient_accumulation_steps {number} on only under DeepSpeed; the script runs with {side.number}"
                yield _conflict("config-accum-conflict", at, side, message)
            return
        if script is not None and not calls:
            return  # TrainingArguments or no Accelerate at all: other checks speak
        yield report(
            "accum-not-wired",
            launch.path,
            option.mark,
            f"accelerate launch hands its gradient_accumulation_steps {number} on only under DeepSpeed; here it is ignored",
            related=[(script.path, c.mark, "Accelerator() takes no count here") for c in calls[:1]]
            if script
            else [],
        )
        return
    source = option if option is not None and deepspeed else env
    if source is None or not source.known or whole(source.text) is None:
        return
    for call in calls:
        side = _side(script, call, "gradient_accumulation_steps") if script is not None else None
        if (
            side is not None
            and side.number != whole(source.text)
            and "gradient_accumulation_steps" not in launch.args
        ):
            at = Side(whole(source.text), launch.path, source.mark, f"{wiring.ENV_STEPS} {source.text}")
            message = f"the launcher's count {source.text} reaches Accelerator() through the environment and beats {side.label} without a word"
            yield _conflict("config-accum-conflict", at, side, message)


def _unknown_flag(launch: Launch, script: Script | None) -> Iterator[Finding]:
    """An accumulation flag that the script does not know and, through ``parse_known_args``, swallows."""
    if script is None or not script.arguments or not any(c.short == "parse_known_args" for c in script.calls):
        return
    if any(c.short in ("HfArgumentParser", "TrlParser", "add_config_arguments") for c in script.calls):
        return
    unknown = [c for c in script.calls if c.short == "parse_known_args"]
    if any(len(c.assigned) < 2 or c.assigned[1] not in ("_", "__", "unused") for c in unknown):
        return  # the rest may be passed on
    for name, arg in launch.args.items():
        if names_accumulation(name) and name not in script.arguments and (whole(arg.text) or 0) > 1:
            yield report(
                "accum-not-wired",
                launch.path,
                arg.mark,
                f"the script knows no --{name}; parse_known_args swallows it and the run goes on without it",
                related=[(script.path, unknown[0].mark, "unknown flags are dropped here")],
            )


# -- ranks from elsewhere ----------------------------------------------------------------------------


def _divided(found: View, world: int) -> int | None:
    """Data-parallel ranks of a world of ``world`` processes under the model parallelism that the file states."""
    spec = found.dialect.ranks
    for key in spec.divide_by:
        entry = found.table.find(key)
        if entry is None or entry.value is None:
            continue
        number = whole(entry.value)
        if number is None or number < 1 or world % number:
            return None
        world //= number
    return world


Worlds = dict[tuple[str, int], list[tuple[View, int | None, Fact]]]


def worlds(tree: Tree) -> Worlds:
    """By (path, table): the data-parallel ranks under which launch lines and launcher configurations start it."""
    found_worlds: Worlds = {}

    def add(found: View, world: int | None, path: str, mark: Mark) -> None:
        if found.ranks is None and found.dialect.closes != "none":
            fact = Fact("ranks", world, "ranks", path, mark)
            found_worlds.setdefault((found.path, id(found.table)), []).append((found, world, fact))

    for launch in tree.launches:
        count, mark = launch.ranks()
        config = joins.accelerate_of_launch(tree, launch)
        path = launch.path
        if (
            config is not None
            and count is None
            and "num_processes" not in launch.options
            and config.ranks is not None
        ):
            count, path = config.ranks, config.path
            mark = config.ranks_from[0].mark if config.ranks_from else mark
        parallel = any(any(p in name for p in _PARALLEL) for name in launch.args)
        script = joins.script_of_launch(tree, launch)
        text = tree.scripts.text(script) if script else ""
        for found, _ in joins.configs_of_launch(tree, launch):
            add(found, None if parallel or count is None else _divided(found, count), path, mark)
        files = {named[0]} if (named := joins.deepspeed_of_launch(tree, launch)) else set()
        if script and not files:
            files = set(joins.deepspeed_of_script(tree, script))
        if config is not None:
            inner = config.entry("deepspeed_config.deepspeed_config_file")
            target = tree.resolve(inner.value, config.path) if inner is not None else None
            files |= {target} if target else set()
        parallel = parallel or any(word in text for word in _PARALLEL_CODE)
        for target in files:
            deepspeed = tree.view(target, "deepspeed")
            if deepspeed is not None:
                add(deepspeed, None if parallel or count is None else _divided(deepspeed, count), path, mark)
    for path in sorted(tree.views):
        launcher = tree.view(path, "accelerate")
        inner = launcher.entry("deepspeed_config.deepspeed_config_file") if launcher else None
        target = tree.resolve(inner.value, path) if inner is not None else None
        deepspeed = tree.view(target, "deepspeed") if target else None
        if deepspeed is not None and launcher is not None and launcher.ranks:
            add(deepspeed, _divided(deepspeed, launcher.ranks), launcher.path, launcher.ranks_from[0].mark)
    return found_worlds


def ranks_from_launches(tree: Tree) -> Iterator[Finding]:
    """Configurations whose product closes for some number of ranks, but for none that a launch line starts."""
    for entries in worlds(tree).values():
        if any(world is None for _, world, _ in entries):
            continue
        results = []
        for found, world, fact in entries:
            results.append(check_arithmetic(dataclasses.replace(found, ranks=world, ranks_from=(fact,))))
        if all(results):  # no launch line closes it
            yield results[0][0]


def launcher_with_recipes(tree: Tree) -> Iterator[Finding]:
    """A DeepSpeed launcher configuration with a count, and the recipe that runs under it (the Trainer refuses a difference)."""
    pairs: list[tuple[View, View]] = []
    for launch in tree.launches:
        launcher = joins.accelerate_of_launch(tree, launch)
        if launcher is not None:
            pairs += [
                (launcher, found)
                for found, _ in joins.configs_of_launch(tree, launch)
                if found.dialect.name == "training-arguments"
            ]
            own = _arg_side(launch, "gradient_accumulation_steps")
            if (
                own is not None
                and "per_device_train_batch_size" in launch.args
                and _under_deepspeed(launcher)
            ):
                yield from compare_trainer(launcher, own, None, _float_side(launch, "max_grad_norm"))
    if not pairs and tree.one_folder() and not tree.scripts:
        launchers = [v for p in sorted(tree.views) if (v := tree.view(p, "accelerate"))]
        recipes = [v for p in sorted(tree.views) if (v := tree.view(p, "training-arguments"))]
        if len(launchers) == 1 and len(recipes) == 1:
            pairs = [(launchers[0], recipes[0])]
    for launcher, recipe in pairs:
        if _under_deepspeed(launcher):
            steps, _, clip, _ = _view_sides(recipe)
            yield from compare_trainer(launcher, steps, None, clip)


def _under_deepspeed(launcher: View) -> bool:
    return str(launcher.value("distributed_type")).upper() == "DEEPSPEED"


def lightning_strategy(tree: Tree, script: Script, launches: Sequence[Launch]) -> Iterator[Finding]:
    """A DeepSpeed file handed to Lightning's strategy must not state the count (strategies/deepspeed.py raises)."""
    for call in script.calls:
        if call.short != "DeepSpeedStrategy" or "lightning" not in call.name:
            continue
        expression = call.keywords.get("config")
        value = script.value(expression) if expression is not None else None
        target = tree.resolve(value.value, script.path) if value is not None else None
        table = script.dict_table(expression) if expression is not None else None
        entry, path = None, script.path
        if target is not None:
            found = tree.view(target, "deepspeed")
            entry, path = (found.entry("accumulation") if found else None), target
        elif table is not None:
            entry = table.get("gradient_accumulation_steps")
        if entry is None:
            continue
        trainers = wiring.lightning_trainers(script)
        related = [
            (script.path, script.mark(c.keywords["accumulate_grad_batches"]), "accumulate_grad_batches")
            for c in trainers
            if "accumulate_grad_batches" in c.keywords
        ]
        yield report(
            "config-accum-conflict",
            path,
            entry.mark,
            "Lightning sets gradient_accumulation_steps from accumulate_grad_batches and refuses a DeepSpeed configuration that states it",
            related=related or [(script.path, call.mark, "handed to the strategy here")],
        )

def split_count(tree: Tree, script: Script, launches: Sequence[Launch]) -> Iterator[Finding]:
    """A count that is global in the script (``steps //= world_size``) and does not divide by the launched ranks.

    nanoGPT's convention: the constant is the count over all ranks, each rank takes its share.
    """
    for node in script.nodes if "//=" in script.text else ():
        if not (
            isinstance(node, ast.AugAssign)
            and isinstance(node.op, ast.FloorDiv)
            and isinstance(node.target, ast.Name)
        ):
            continue
        name = node.target.id
        divisor = script.qualified(node.value) or getattr(getattr(node.value, "func", None), "attr", "")
        stated = [
            e
            for e in script.assigned.get(name, [])
            if (v := script.value(e)) is not None and v.number is not None
        ]
        if not names_accumulation(name) or "world_size" not in divisor or len(stated) != 1:
            continue
        count = script.value(stated[0]).number  # type: ignore[union-attr]
        worlds_seen: list[tuple[Launch, int, Mark]] = [
            (launch, launch.ranks()[0] or 0, launch.ranks()[1])
            for launch in launches
            if not any(names_accumulation(flag) for flag in launch.args)
        ]
        if worlds_seen and count and all(world and count % world for _, world, _ in worlds_seen):
            launch, world, mark = worlds_seen[0]
            yield report(
                "config-batch-mismatch",
                script.path,
                script.mark(stated[0]),
                f"{name} {count} is shared out over {world} ranks and is no multiple of them: {count // world * world} microbatches per update are left",
                evidence={"accumulation": count, "ranks": world},
                related=[(launch.path, mark, f"{world} ranks are started here")],
            )

def overrides(tree: Tree) -> Iterator[Finding]:
    """A configuration with the keys that its launch line lays over it (``tune run … key=value``, ``--train.x 3``)."""
    for launch in tree.launches:
        for found, _ in joins.configs_of_launch(tree, launch):
            known = {key for keys in found.dialect.roles.values() for key in keys} | {
                condition[field]
                for check in found.dialect.checks
                for condition in check["when"]
                for field in ("value", "not_true")
                if field in condition
            }
            laid = tuple(entry for entry in launch.table().entries if entry.key in known)
            if not laid:
                continue
            table = Table(laid, found.table.mark, (found.table,))
            own = {id(mark): launch.path for entry in laid for mark in (entry.mark, entry.key_mark)}
            merged = dataclasses.replace(view(found.dialect, found.document, table, found.root), overlay=own)
            before = {(f.rule, f.message) for f in (*check_arithmetic(found), *run_checks(found))}
            for finding in (*check_arithmetic(merged), *run_checks(merged)):
                if (finding.rule, finding.message) not in before:
                    yield finding


# -- configurations that name configurations, or are loaded by scripts ---------------------------------


def configurations_with_deepspeed(tree: Tree) -> Iterator[Finding]:
    """``deepspeed: FILE`` in a TrainingArguments, LLaMA-Factory or axolotl file."""
    for path in sorted(tree.views):
        for found in tree.views[path]:
            if found.dialect.name not in ("training-arguments", "llamafactory", "axolotl"):
                continue
            entry = found.entry("deepspeed")
            if entry is None:
                continue
            if isinstance(entry.node, Table):
                inner = view_as_deepspeed(found, entry.node)
                if inner is not None:
                    yield from compare_trainer(inner, *_view_sides(found))
                continue
            deepspeed = tree.view(tree.resolve(entry.value, path), "deepspeed")
            if deepspeed is not None:
                yield from compare_trainer(deepspeed, *_view_sides(found))


def view_as_deepspeed(found: View, table: Table) -> View | None:
    return view(dialect("deepspeed"), found.document, table, found.root)


_LOADERS = (
    "yaml.safe_load",
    "yaml.load",
    "yaml.full_load",
    "json.load",
    "json.loads",
    "OmegaConf.load",
    "omegaconf.OmegaConf.load",
    "tomllib.load",
    "tomli.load",
    "toml.load",
)


def loaded_configuration(tree: Tree, script: Script, launches: Sequence[Launch]) -> Iterator[Finding]:
    """A configuration that a script loads, whose accumulation no line of the script reads.

    Only where the script itself trains (it calls ``backward`` or builds an engine) and hands the loaded table to
    nobody else by splat or constructor.
    """
    loads = [c for c in script.calls if c.name in _LOADERS]
    if len(loads) != 1 or len(loads[0].assigned) != 1:
        return
    target = loads[0].assigned[0]
    named = [
        (path, script.mark(each))
        for each in script.strings
        if each.value.endswith((".yaml", ".yml", ".json", ".toml"))
        and (path := tree.resolve(each.value, script.path))
        and path in tree.paths
    ]
    if len({path for path, _ in named}) != 1 or not target or _escapes(script, target):
        return
    path = named[0][0]
    for key, entry in _stated_counts(tree, path):
        number = whole(entry.value)
        if (
            number is None
            or number <= 1
            or key in script.reads
            or any(key in each.value for each in script.strings)
        ):
            continue
        engine = next(
            (
                c
                for c in (
                    *wiring.accelerators(script),
                    *wiring.training_arguments(script),
                    *wiring.lightning_trainers(script),
                )
            ),
            None,
        )
        if engine is None and not any(c.short == "backward" for c in script.calls):
            continue
        keyword = {
            "Accelerator": "gradient_accumulation_steps",
            "Trainer": "accumulate_grad_batches",
        }.get(engine.short if engine else "", "gradient_accumulation_steps")
        place, where = (engine.mark, script.path) if engine is not None else (entry.mark, path)
        if engine is not None and (keyword in engine.keywords or engine.splat):
            own = _side(script, engine, keyword)
            if own is not None and own.number != number and own.sure:
                at = Side(number, path, entry.mark, f"{key} {number}")
                yield _conflict(
                    "config-accum-conflict",
                    at,
                    own,
                    f"{key} is {number} here, and the script that loads this file fixes {own.number}",
                )
            continue
        yield report(
            "accum-not-wired",
            where,
            place,
            f"{key} {number} is loaded with the configuration and read by nothing: windows have 1 microbatch",
            related=[
                (path, entry.mark, f"{key} {number} is stated here"),
                (script.path, loads[0].mark, "loaded here"),
            ],
        )

def _stated_counts(tree: Tree, path: str) -> list[tuple[str, Entry]]:
    found = []
    for document in (d for d in tree.documents if d.path == path):
        for table in document.tables():
            for _, entry in walk(table):
                if (
                    isinstance(entry.node, Scalar)
                    and names_accumulation(entry.key)
                    and not isinstance(entry.value, Unresolved)
                ):
                    found.append((entry.key, entry))
    return found


def _escapes(script: Script, name: str) -> bool:
    """Whether a loaded table is handed on whole: as an argument, by splat, returned, or stored elsewhere."""
    for node in script.reads.get(name, ()):
        parent = script.parents.get(node)
        if isinstance(
            parent,
            (ast.Call, ast.keyword, ast.Return, ast.Starred, ast.Dict, ast.Assign, ast.List, ast.Tuple),
        ):
            if isinstance(parent, ast.Call) and node is parent.func:
                continue
            return True
    return False


def constructor_calls(tree: Tree, script: Script, launches: Sequence[Launch]) -> Iterator[Finding]:
    """Constructor calls read as the dialect of the file that they could have been (optim, strategy, …)."""
    for found in wiring.constructor_views(script):
        yield from run_checks(found)


# what is said of one script, with the launch lines that start it
SCRIPT_PARTS = (
    script_with_deepspeed,
    inline_deepspeed,
    accelerate_with_script,
    lightning_strategy,
    split_count,
    loaded_configuration,
    constructor_calls,
)
# what is said of a tree
PARTS = (
    launcher_with_recipes,
    ranks_from_launches,
    overrides,
    configurations_with_deepspeed,
)
