"""ACC903: an accumulation count computed from the devices of one node, in a run that may have several.

Looks for ``accumulation = global // (micro × devices of this node)`` in Python, in shell arithmetic and in
OmegaConf expressions. It speaks only where the same file shows that there can be more than one node.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accumlint.config.names import report
from accumlint.config.sources.script import Script, names_accumulation
from accumlint.config.tree import Document, Scalar, walk, whole
from accumlint.findings import Confidence, Finding

if TYPE_CHECKING:
    from accumlint.config.sources.launch import Launch
    from accumlint.config.sources.shell import Shell

_LOCAL_NAME = re.compile(
    r"(?i)^(local_world_size|local_size|(n_?|num_)?(gpus|devices|procs?|processes)_per_(node|machine|host)|nproc_per_node)$"
)
_GLOBAL_NAME = re.compile(
    r"(?i)(^|_)(world|world_size|worldsize|ws|nodes|n_?nodes|num_nodes|nnodes|n_node|num_machines|hosts|num_hosts|num_processes|get_world_size"
    r"|dp_size|dp_world_size|dp_degree|data_parallel_size|slurm_nnodes|slurm_job_num_nodes|slurm_ntasks|slurm_job_num_nodes|ddp_world_size)$"
)
_COUNT_CALLS = (
    "torch.cuda.device_count",
    "cuda.device_count",
    "torch.accelerator.device_count",
    "torch.xpu.device_count",
)
_DEVICES = re.compile(r"(?i)^(devices|gpus|num_devices)$")


def _expand(script: Script, node: ast.expr, depth: int = 0) -> list[ast.AST]:
    """The nodes of an expression and of the constants it names (assigned once)."""
    found: list[ast.AST] = []
    for below in ast.walk(node):
        found.append(below)
        if isinstance(below, ast.Name) and depth < 4 and not _GLOBAL_NAME.search(below.id):
            known = script.assigned.get(below.id, [])
            if len(known) == 1 and below.id not in script.parameters:
                found.extend(_expand(script, known[0], depth + 1))
    return found


def _words(script: Script, nodes: list[ast.AST]) -> set[str]:
    words = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
    return words


def _local(script: Script, nodes: list[ast.AST]) -> str:
    """The local count that an expression uses, or an empty text."""
    for node in nodes:
        if isinstance(node, ast.Call) and script.qualified(node.func) in _COUNT_CALLS:
            return "torch.cuda.device_count()"
    for word in sorted(_words(script, nodes)):
        if _LOCAL_NAME.match(word):
            return word
        if _DEVICES.match(word) and _fabric_with_nodes(script):
            return word
    return ""


def _fabric_with_nodes(script: Script) -> bool:
    """Whether devices and nodes are handed to the same engine, so that "devices" is per node."""
    return any("devices" in c.keywords and "num_nodes" in c.keywords for c in script.calls)


def _several_nodes(script: Script) -> Confidence | None:
    """How sure it is that a run of this script can have more than one node."""
    for call in script.calls:
        nodes = script.value(call.keywords.get("num_nodes") or call.keywords.get("nnodes"))
        if nodes is not None and nodes.number is not None and nodes.number > 1:
            return Confidence.CERTAIN
    for name, value in (*script.arguments.items(), *script.fields.items()):
        if re.match(r"(?i)(num_|n_?)?nodes$|nnodes$|num_machines$", name):
            return Confidence.CERTAIN if value.number and value.number > 1 else Confidence.CONDITIONAL
    if any("num_nodes" in c.keywords for c in script.calls):
        return Confidence.CONDITIONAL
    spawned = [c for c in script.calls if c.short == "spawn"]
    if spawned:
        return None  # one machine by construction, unless nodes are named, which was looked for above
    words = {each.value for each in script.strings}
    if "WORLD_SIZE" in words or any(
        c.short in ("init_process_group", "init_distributed", "initialize") for c in script.calls
    ):
        # a world that is sized by this machine's devices is one machine by construction
        for call in script.calls:
            size = call.keywords.get("world_size") if call.short == "init_process_group" else None
            if size is not None and _local(script, _expand(script, size)):
                return None
        return Confidence.CONDITIONAL
    if any(c.short in ("Accelerator", "Fabric") for c in script.calls):
        return Confidence.CONDITIONAL
    return None


_STATING = frozenset({ast.Assign, ast.AnnAssign, ast.AugAssign, ast.keyword, ast.FunctionDef, ast.AsyncFunctionDef})


def check_script(script: Script, launches: Sequence[Launch] = ()) -> list[Finding]:
    """Assignments and keywords named like an accumulation whose divisor counts one node's devices."""
    findings: list[Finding] = []
    sites: list[tuple[str, ast.expr, ast.AST]] = []
    for node in script.nodes:
        if type(node) not in _STATING:
            continue
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = (
                    target.id
                    if isinstance(target, ast.Name)
                    else target.attr
                    if isinstance(target, ast.Attribute)
                    else ""
                )
                sites.append((name, node.value, node))
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            sites.append((node.target.id, node.value, node))
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.FloorDiv, ast.Div)):
            name = node.target.id if isinstance(node.target, ast.Name) else getattr(node.target, "attr", "")
            sites.append((name, ast.BinOp(ast.Constant(1), node.op, node.value), node))
        elif isinstance(node, ast.keyword) and node.arg:
            sites.append((node.arg, node.value, node.value))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and names_accumulation(node.name):
            for below in ast.walk(node):
                if isinstance(below, ast.Return) and below.value is not None:
                    sites.append((node.name, below.value, below))
    if not any(names_accumulation(name) for name, _, _ in sites):
        return []
    nodes_seen = _several_nodes(script)
    for launch in launches:
        seen = _launch_nodes(launch)
        if seen is not None and (nodes_seen is None or seen > nodes_seen):
            nodes_seen = seen
    if nodes_seen is None:
        return []
    for name, expression, place in sites:
        if not names_accumulation(name):
            continue
        if any(isinstance(node, ast.Name) and names_accumulation(node.id) for node in ast.walk(expression)):
            continue  # the count comes from another name, which is reported where it is computed
        expanded = _expand(script, expression)
        divisors = [
            node.right
            for node in expanded
            if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Div))
        ]
        used = [below for divisor in divisors for below in _expand(script, divisor)]
        local = _local(script, used)
        if not local or any(_GLOBAL_NAME.search(word) for word in _words(script, expanded)):
            continue
        findings.append(
            report(
                "accum-from-local-devices",
                script.path,
                script.mark(place),
                f"{name} is divided by {local}, the devices of one node, not by the world size: on N nodes the global batch is N times too large",
                confidence=nodes_seen,
                evidence={"divisor": local},
            )
        )
    return findings


_SHELL_LOCAL = re.compile(r"nvidia-smi|rocm-smi|device_count|SLURM_GPUS_ON_NODE|SLURM_GPUS_PER_NODE")


def check_shell(path: str, shell: Shell, launches: list[Launch]) -> list[Finding]:
    """``GRAD_ACCUM=$((GLOBAL / (MICRO * GPUS)))`` where GPUS is a node's and the launch line has several nodes."""
    findings = []
    several = [launch for launch in launches if _launch_nodes(launch)]
    if not several:
        return []
    per_node = {m for launch in several for m in _variables_of(launch, shell)}
    for name, variable in shell.variables.items():
        if not names_accumulation(name) or len(variable.words) != 1:
            continue
        raw = variable.words[0].raw
        if "$((" not in raw or "/" not in raw:
            continue
        divisor = raw.partition("/")[2]
        words = set(re.findall(r"[A-Za-z_]\w*", raw))
        if any(_GLOBAL_NAME.search(word) for word in words):
            continue
        local = sorted(
            w
            for w in re.findall(r"[A-Za-z_]\w*", divisor)
            if w in per_node or _LOCAL_NAME.match(w) or _counts_gpus(shell, w)
        )
        if not local:
            continue
        word = variable.words[0]
        findings.append(
            report(
                "accum-from-local-devices",
                path,
                shell.mark(word.begin, word.end),
                f"{name} is divided by {local[0]}, the processes of one node, while the launch line starts several nodes: "
                "the global batch is as many times too large",
                confidence=_launch_nodes(several[0]) or Confidence.CONDITIONAL,
                related=[(path, launch.mark, "launched here") for launch in several[:1]],
            )
        )
    return findings


def _launch_nodes(launch: Launch) -> Confidence | None:
    nodes = launch.nodes()
    if nodes is None:
        return None
    number = whole(nodes.text) if nodes.known else None
    if number is None:
        return Confidence.CONDITIONAL
    return Confidence.CERTAIN if number > 1 else None


def _variables_of(launch: Launch, shell: Shell) -> set[str]:
    """The variables that give the processes per node on a launch line."""
    option = launch.options.get("nproc_per_node") or launch.options.get("num_gpus")
    if option is None:
        return set()
    names = set()
    for name, variable in shell.variables.items():
        if variable.words and any(shell.mark(w.begin, w.end) == option.mark for w in variable.words):
            names.add(name)
    match = re.fullmatch(r"\"?\$\{?([A-Za-z_]\w*)\}?\"?", option.text)
    if match:
        names.add(match.group(1))
    line = (
        shell.text.split("\n")[option.mark.line - 1] if option.mark.line <= shell.text.count("\n") + 1 else ""
    )
    written = re.match(r"\"?\$\{?([A-Za-z_]\w*)\}?\"?", line[option.mark.column - 1 :])
    if written:
        names.add(written.group(1))
    return names


def _counts_gpus(shell: Shell, name: str) -> bool:
    variable = shell.variables.get(name)
    return variable is not None and any(_SHELL_LOCAL.search(w.raw) for w in variable.words)


_EXPRESSION = re.compile(
    r"\$\{(eval|div|floordiv|floor_div|int_div|oc\.eval|idiv|calc|math)[:.]", re.IGNORECASE
)


def check_document(document: Document) -> list[Finding]:
    """An OmegaConf expression that divides by devices and leaves the stated nodes out."""
    findings = []
    for table in document.tables():
        entries = list(walk(table))
        nodes = next(
            (
                e
                for p, e in entries
                if e.key in ("num_nodes", "nnodes", "nodes") and (whole(e.value) or 0) > 1
            ),
            None,
        )
        if nodes is None:
            continue
        for _, entry in entries:
            if (
                not names_accumulation(entry.key)
                or not isinstance(entry.node, Scalar)
                or not isinstance(entry.value, str)
            ):
                continue
            text = entry.value
            if not _EXPRESSION.search(text):
                continue
            words = re.findall(r"[A-Za-z_]\w*", text)
            local = next((w for w in words if _LOCAL_NAME.match(w) or _DEVICES.match(w)), "")
            if not local or any(_GLOBAL_NAME.search(w) for w in words):
                continue
            findings.append(
                report(
                    "accum-from-local-devices",
                    document.path,
                    entry.mark,
                    f"{entry.key} is divided by {local}, the devices of one node, while {nodes.key} is {nodes.value}: "
                    f"the global batch is {nodes.value} times too large",
                    related=[(document.path, nodes.mark, f"{nodes.key} = {nodes.value}")],
                )
            )
    return findings
