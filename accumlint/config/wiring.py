"""ACC904 and ACC902 inside one script: is the accumulation that it states handed to the engine that accumulates?

Engines and the keyword that carries the count: ``Accelerator(gradient_accumulation_steps=)`` (accelerate
1.15.0.dev0, accelerator.py), ``TrainingArguments(gradient_accumulation_steps=)`` and TRL's configs
(transformers 5.24.0), ``Trainer(accumulate_grad_batches=)`` (lightning 2.6.6).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from accumlint.config.names import report
from accumlint.config.sources.script import Call, Script, Value, accumulation_settings, ancestors
from accumlint.findings import Confidence, Finding

if TYPE_CHECKING:
    from accumlint.config.dialects import View

LIGHTNING_TRAINERS = (
    "lightning.Trainer",
    "lightning.pytorch.Trainer",
    "pytorch_lightning.Trainer",
    "lightning.pytorch.trainer.Trainer",
)
ENV_STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
_PLUGINS = ("gradient_accumulation_plugin", "deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin")
_LOGGING = {
    "print",
    "info",
    "debug",
    "warning",
    "format",
    "write",
    "log",
    "str",
    "display",
    "rank_zero_info",
    "log_metrics",
}


def accelerators(script: Script) -> list[Call]:
    return [
        c for c in script.calls if c.name in ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")
    ]


def training_arguments(script: Script) -> list[Call]:
    """Constructors of TrainingArguments and of TRL's configurations, which inherit from it."""
    found = []
    for call in script.calls:
        package = call.name.partition(".")[0]
        if (
            package == "transformers"
            and call.short.endswith("TrainingArguments")
            or package == "trl"
            and call.short.endswith("Config")
            and call.short not in ("ModelConfig", "LoraConfig")
            or package == "sentence_transformers"
            and call.short.endswith("TrainingArguments")
        ):
            found.append(call)
    return found


def lightning_trainers(script: Script) -> list[Call]:
    return script.find_calls(*LIGHTNING_TRAINERS)


def deepspeed_inits(script: Script) -> list[Call]:
    return script.find_calls("deepspeed.initialize")


# keywords under which calls take a configuration as a dict
_HOLDERS = frozenset({"config", "config_params", "deepspeed", "hf_ds_config"})


def holds_configuration(script: Script) -> bool:
    """Whether a call of the script could be audited like a configuration file, or may hold one as a dict."""
    if training_arguments(script) or lightning_trainers(script):
        return True
    return any(not _HOLDERS.isdisjoint(call.keywords) for call in script.calls)


def constructor_views(script: Script) -> list[View]:
    """Constructor calls read as the dialect of the file that they could have been."""
    from accumlint.config.dialects import dialect, view

    views = []
    for name, calls in (
        ("training-arguments", training_arguments(script)),
        ("lightning", lightning_trainers(script)),
    ):
        for call in calls:
            document, table = script.table(call)
            views.append(view(dialect(name), document, table))
    return views


def _method_called(script: Script, name: str) -> bool:
    return any(c.short == name for c in script.calls)


def _used_in_modulo(script: Script, name: str) -> bool:
    for node in script.reads.get(name, ()):
        parent = script.parents.get(node)
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod):
            return True
        if isinstance(parent, ast.Compare):
            return True
    return False


def _handed_over(script: Script, name: str) -> bool:
    """Whether the setting is passed on to something that may accumulate: an argument of a call that does more than show it."""
    for node in script.reads.get(name, ()):
        below: ast.AST = node
        for above in ancestors(script, node):
            if isinstance(above, ast.Call) and below is not above.func:
                called = script.qualified(above.func).rpartition(".")[2] or getattr(above.func, "attr", "")
                if called not in _LOGGING and called not in (
                    "int",
                    "max",
                    "min",
                    "round",
                    "ceil",
                    "len",
                    "float",
                    "range",
                ):
                    return True
            if isinstance(above, (ast.Dict, ast.Return, ast.Yield)):
                return True
            if isinstance(above, ast.stmt):
                break
            below = above
    return False


def _whole_arguments_escape(script: Script) -> bool:
    """``vars(args)``, ``**vars(args)``, ``args.__dict__``, ``asdict(config)``: every field may be read by name elsewhere."""
    return (
        any(c.short in ("vars", "asdict", "__dict__", "to_dict", "fields") for c in script.calls)
        or "__dict__" in script.reads
    )


def _settings_above_one(script: Script) -> dict[str, Value]:
    return {
        name: value
        for name, value in accumulation_settings(script).items()
        if value.number != 1 or name in script.arguments  # a flag asks for a window whatever its default
    }


def _read(script: Script, name: str) -> bool:
    """Whether the value is used for anything but showing it."""
    for node in script.reads.get(name, ()):
        if not _only_shown(script, node):
            return True
    return False


def _only_shown(script: Script, node: ast.AST) -> bool:
    """Whether a read ends in a print, a log call or a name that is only shown itself."""
    below = node
    for above in ancestors(script, node):
        if isinstance(above, ast.Call) and below is not above.func:
            called = script.qualified(above.func).rpartition(".")[2] or getattr(above.func, "attr", "")
            return called in _LOGGING
        if isinstance(above, (ast.BinOp, ast.JoinedStr, ast.FormattedValue, ast.keyword, ast.Dict)):
            below = above
            continue
        return isinstance(above, ast.Expr)
    return False


def _arguments_leave(script: Script) -> bool:
    """Whether the parsed arguments are handed whole to something that is not defined in this file."""
    if _whole_arguments_escape(script):
        return True
    holders = {
        name
        for call in script.calls
        if call.short in ("parse_args", "parse_known_args", "parse_args_into_dataclasses")
        for name in call.assigned
    }
    own = {
        node.name
        for node in script.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    returned = {
        node.name
        for node in script.nodes
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(below, ast.Return)
            and isinstance(below.value, ast.Call)
            and getattr(below.value.func, "attr", "") == "parse_args"
            for below in ast.walk(node)
        )
    }
    holders |= {name for call in script.calls if call.name in returned for name in call.assigned}
    if not holders:
        return True  # parsed in a way that is not followed
    names = holders | {"args", "opt", "opts", "cfg", "config", "hparams", "flags", "FLAGS"}
    for name in names:
        for node in script.reads.get(name, ()):
            if not isinstance(node, ast.Name):
                continue
            parent = script.parents.get(node)
            if isinstance(parent, ast.keyword):
                node, parent = parent, script.parents.get(parent)
            if (
                isinstance(parent, ast.Call)
                and node is not parent.func
                and script.qualified(parent.func) not in own | {"print", "vars", "len"}
            ):
                called = script.qualified(parent.func)
                if called.rpartition(".")[2] not in _LOGGING:
                    return True
            if isinstance(parent, (ast.Return, ast.Dict, ast.List, ast.Tuple)) or (
                isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Attribute)
            ):
                return True
    return False


def check_unread(script: Script) -> list[Finding]:
    """A count that a training script states and nothing reads: the loop, or the engine, goes on without it."""
    trains = _method_called(script, "backward") or _method_called(script, "manual_backward")
    engines = [
        (c, "gradient_accumulation_steps") for c in (*accelerators(script), *training_arguments(script))
    ]
    engines += [(c, "accumulate_grad_batches") for c in lightning_trainers(script)]
    findings: list[Finding] = []
    leave: bool | None = None
    for name, value in sorted(
        accumulation_settings(script).items(), key=lambda item: (item[1].mark.line, item[0])
    ):
        if (
            _read(script, name)
            or name in script.fields
            or any(name == each.value for each in script.strings if name not in script.arguments)
        ):
            continue
        if name in script.arguments:
            leave = _arguments_leave(script) if leave is None else leave
            if leave:
                continue
        elif not name.isupper():
            continue  # a local of a helper, an attribute default: nobody promised it to the run
        fixed = [
            (c, k, s)
            for c, k in engines
            if k in c.keywords and (s := script.value(c.keywords[k])) is not None and s.number is not None
        ]
        if fixed and not fixed[0][2].overridable:
            call, keyword, own = fixed[0]
            if (
                value.number is None
                or own.number == value.number
                or (name in script.arguments and value.number == 1)
            ):
                continue
            findings.append(
                report(
                    "accum-not-wired" if own.number == 1 else "config-accum-conflict",
                    script.path,
                    script.mark(call.keywords[keyword]),
                    f"{call.short}() is given a fixed {keyword} {own.number}; {name} = {value.number} is stated and never read",
                    evidence={"stated": [own.number, value.number]},
                    related=[(script.path, value.mark, f"{name} is stated here")],
                )
            )
        elif trains and not engines and not deepspeed_inits(script) and (value.number or 0) > 1:
            findings.append(
                report(
                    "accum-not-wired",
                    script.path,
                    value.mark,
                    f"{name} = {value.number} is stated and nothing reads it: every microbatch is a window of its own",
                    evidence={"accumulation": value.number},
                )
            )
    return findings


def check_accelerator(script: Script) -> list[Finding]:
    """``Accelerator()`` without the count, although ``accumulate()`` is entered and a count is stated."""
    calls = accelerators(script)
    if not calls or not _method_called(script, "accumulate"):
        return []
    call = calls[0]
    if (
        len(calls) > 1
        or call.splat
        or "gradient_accumulation_steps" in call.keywords
        or any(p in call.keywords for p in _PLUGINS)
    ):
        return []
    if (
        "gradient_accumulation_steps" in script.stores
        or ENV_STEPS in script.environ
        or _mentions(script, ENV_STEPS)
    ):
        return []
    settings = _settings_above_one(script)
    settings = {n: v for n, v in settings.items() if not _used_in_modulo(script, n)}
    if not settings:
        return []
    name, value = next(iter(sorted(settings.items(), key=lambda item: (item[1].mark.line, item[0]))))
    built = "Accelerator() is built without gradient_accumulation_steps, so accumulate() makes windows of 1"
    return [_without_effect(script, call, name, value, built, "accelerate")]


def _without_effect(script: Script, call: Call, name: str, value: Value, built: str, engine: str) -> Finding:
    """A count that is stated while the engine was ``built`` without it."""
    stated = f"{name} = {value.value}" if value.value is not None else name
    return report(
        "accum-not-wired",
        script.path,
        call.mark,
        f"{built} and {stated} has no effect",
        evidence={"accumulation": value.value if value.number else None, "engine": engine},
        related=[(script.path, value.mark, f"{name} is stated here")],
    )


def _mentions(script: Script, text: str) -> bool:
    return any(text in each.value for each in script.strings)


def _not_wired(script: Script, call: Call, keyword: str, engine: str) -> list[Finding]:
    """The engine is built without its count, and nothing else takes it."""
    if keyword in call.keywords or call.splat or call.node.args and engine != "lightning":
        return []
    if keyword in script.stores or _whole_arguments_escape(script):
        return []
    if _method_called(script, "backward") or _method_called(script, "manual_backward"):
        return []
    for name, value in sorted(
        _settings_above_one(script).items(), key=lambda item: (item[1].mark.line, item[0])
    ):
        if _handed_over(script, name) or _used_in_modulo(script, name):
            continue
        built = f"{call.short}() is built without {keyword}, so windows have 1 microbatch"
        return [_without_effect(script, call, name, value, built, engine)]
    return []


def check_trainers(script: Script) -> list[Finding]:
    findings = []
    arguments = training_arguments(script)
    alone = not deepspeed_inits(script) and not accelerators(script)
    parsed = any(c.short in ("HfArgumentParser", "TrlParser") for c in script.calls)
    if len(arguments) == 1 and alone and not parsed:
        findings += _not_wired(script, arguments[0], "gradient_accumulation_steps", "transformers")
    trainers = lightning_trainers(script)
    if (
        len(trainers) == 1
        and "automatic_optimization" not in script.stores
        and not _mentions_scheduler(script)
    ):
        findings += _not_wired(script, trainers[0], "accumulate_grad_batches", "lightning")
    return findings


def _mentions_scheduler(script: Script) -> bool:
    return any(
        c.short in ("GradientAccumulationScheduler", "LightningCLI", "from_argparse_args")
        for c in script.calls
    )


def check_two_sources(script: Script) -> list[Finding]:
    """Two counts inside one script that reach the same Accelerator."""
    findings: list[Finding] = []
    for call in accelerators(script):
        own = script.value(call.keywords.get("gradient_accumulation_steps"))
        if own is None or own.number is None:
            continue
        for keyword, constructor, argument in (
            ("gradient_accumulation_plugin", "GradientAccumulationPlugin", "num_steps"),
            ("deepspeed_plugin", "DeepSpeedPlugin", "gradient_accumulation_steps"),
        ):
            if keyword not in call.keywords:
                continue
            plugins = [c for c in script.calls if c.short == constructor]
            if len(plugins) != 1:
                continue
            expression = plugins[0].keywords.get(argument)
            if expression is None and argument == "num_steps" and plugins[0].node.args:
                expression = plugins[0].node.args[0]
            other = script.value(expression)
            if other is None or other.number is None or other.number == own.number:
                continue
            if own.number == 1:
                continue
            findings.append(
                report(
                    "config-accum-conflict",
                    script.path,
                    script.mark(call.keywords["gradient_accumulation_steps"]),
                    f"Accelerator() is given gradient_accumulation_steps {own.number} and a {constructor} with {other.number}: "
                    + (
                        "accelerate raises a ValueError"
                        if argument == "num_steps"
                        else "DeepSpeed's value wins, with a warning at most"
                    ),
                    related=[(script.path, script.mark(expression), f"{argument} = {other.number}")],  # type: ignore[arg-type]
                )
            )
        env = script.environ.get(ENV_STEPS)
        number = int(env.value) if env is not None and str(env.value).isdigit() else None
        if (
            env is not None
            and number is not None
            and number != own.number
            and not any(p in call.keywords for p in _PLUGINS)
        ):
            findings.append(
                report(
                    "config-accum-conflict",
                    script.path,
                    script.mark(call.keywords["gradient_accumulation_steps"]),
                    f"the environment variable {ENV_STEPS} = {number} beats gradient_accumulation_steps {own.number} in code",
                    confidence=Confidence.CONDITIONAL if own.overridable else Confidence.CERTAIN,
                    related=[(script.path, env.mark, f"set to {number} here")],
                )
            )
    return findings


def audit_script(script: Script) -> list[Finding]:
    """Everything that a script says by itself about its configuration."""
    return [
        *check_accelerator(script),
        *check_trainers(script),
        *check_unread(script),
        *check_two_sources(script),
    ]
