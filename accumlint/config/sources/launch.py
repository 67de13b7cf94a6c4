"""Launch lines: which script is started how often, with which configurations and flags.

Read from shell scripts, Slurm scripts, Makefiles, GitHub workflows and the fenced commands of Markdown.
What is no command is blanked out, never cut out, so every position is that of the file.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field, replace

from accumlint.config.sources.shell import Arg, Command, Shell, Variable, Word
from accumlint.config.tree import Entry, Mark, Scalar, Table, whole

_SHELL_FENCES = {"bash", "sh", "shell", "zsh", "console", "shell-session", "shellscript", "{bash}", "cli"}
_FENCE = re.compile(r"^\s{0,12}(`{3,}|~{3,})\s*(\{?[\w+-]*\}?)")
# launcher -> options that take no value, because a script or sub-command may follow them
LAUNCHERS = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "composer",
    "axolotl",
    "tune",
    "lightning",
    "llamafactory-cli",
    "litgpt",
    "python",
)
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "axolotl.cli.train": "axolotl",
    "deepspeed.launcher.runner": "deepspeed",
    "composer": "composer",
    "composer.cli.launcher": "composer",
}
_BARE = {
    "accelerate": {
        "multi_gpu",
        "use_deepspeed",
        "use_fsdp",
        "cpu",
        "tpu",
        "quiet",
        "debug",
        "same_network",
        "multi-gpu",
        "m",
        "use_megatron_lm",
        "no_python",
    },
    "torchrun": {"standalone", "no_python", "no-python", "run_path", "use_env"},
    "deepspeed": {
        "no_python",
        "no_local_rank",
        "force_multi",
        "bind_cores_to_rank",
        "enable_each_rank_log",
        "no_ssh",
        "module",
    },
}


@dataclass(frozen=True)
class Launch:
    """One launch line. Names of options are without dashes, with underscores."""

    path: str
    launcher: str
    mark: Mark
    options: dict[str, Arg] = field(default_factory=dict)
    script: Arg | None = None
    args: dict[str, Arg] = field(default_factory=dict)
    positionals: tuple[Arg, ...] = ()
    env: dict[str, Arg] = field(default_factory=dict)

    def table(self) -> Table:
        """The script's flags as a table, so that dialects can read them."""
        entries = []
        for name, arg in self.args.items():
            value: object = arg.text
            if not arg.known:
                value = "${" + arg.text + "}"
            elif whole(arg.text) is not None:
                value = whole(arg.text)
            elif arg.text.lower() in ("true", "false"):
                value = arg.text.lower() == "true"
            elif re.fullmatch(r"-?\d+\.\d*(e-?\d+)?|-?\d+e-?\d+", arg.text):
                value = float(arg.text)
            entries.append(Entry(name, arg.mark, Scalar(value, arg.text, arg.mark)))
        return Table(tuple(entries), self.mark)

    def number(self, *names: str) -> int | None:
        """The first of the launcher's options that is a whole number."""
        for name in names:
            arg = self.options.get(name)
            if arg is not None:
                return whole(arg.text) if arg.known else None
        return None

    def ranks(self) -> tuple[int | None, Mark]:
        """Processes that the line starts, all nodes together; ``None`` where the machine decides."""
        if self.launcher == "torchrun":
            per_node = self._option("nproc_per_node")
            nodes = self._option("nnodes")
            if per_node is not None and not (per_node.known and whole(per_node.text)):
                return None, self.mark
            if nodes is not None and not (nodes.known and whole(nodes.text)):
                return None, self.mark
            count = (whole(per_node.text) if per_node else 1) * (whole(nodes.text) if nodes else 1)  # type: ignore[operator]
            return count, (per_node or nodes).mark if (per_node or nodes) else self.mark  # type: ignore[union-attr]
        if self.launcher == "accelerate":
            arg = self._option("num_processes")
            return (whole(arg.text), arg.mark) if arg is not None and arg.known else (None, self.mark)
        if self.launcher == "deepspeed":
            gpus, nodes, include = (
                self._option("num_gpus"),
                self._option("num_nodes"),
                self._option("include"),
            )
            if include is not None and include.known:
                total = 0
                for host in include.text.split("@"):
                    _, _, slots = host.partition(":")
                    if not re.fullmatch(r"\d+(,\d+)*", slots):
                        return None, self.mark
                    total += slots.count(",") + 1
                return total, include.mark
            if gpus is None or not gpus.known or self._option("hostfile") is not None and nodes is None:
                return None, self.mark
            count = whole(gpus.text)
            factor = 1 if nodes is None else whole(nodes.text) if nodes.known else None
            return (count * factor, gpus.mark) if count and factor and count > 0 else (None, self.mark)
        if self.launcher == "srun":
            arg = self.options["ntasks"]
            return whole(arg.text), arg.mark
        if self.launcher == "composer":
            arg = self._option("world_size") or self._option("n") or self._option("nproc")
            return (whole(arg.text), arg.mark) if arg is not None and arg.known else (None, self.mark)
        return None, self.mark

    def _option(self, name: str) -> Arg | None:
        return self.options.get(name)

    def nodes(self) -> Arg | None:
        return self._option("nnodes") or self._option("num_nodes") or self._option("num_machines")


def shell_text(path: str, text: str) -> str:
    """The text with everything that is no shell command replaced by blanks; same length of every line kept."""
    name = posixpath.basename(path).lower()
    if name.endswith(".md"):
        return _from_markdown(text)
    if name in ("makefile", "gnumakefile") or name.endswith(".mk"):
        return _from_makefile(text)
    if name.endswith((".yml", ".yaml")):
        return _from_workflow(text)
    return text


def _from_markdown(text: str) -> str:
    lines, fence, takes = [], "", False
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if match and not fence:
            fence, takes = match.group(1), match.group(2).lower() in _SHELL_FENCES
            lines.append("")
        elif (
            match
            and fence
            and line.strip().startswith(fence[:3])
            and len(match.group(1)) >= len(fence)
            and not match.group(2)
        ):
            fence = ""
            lines.append("")
        else:
            shown = re.sub(r"^(\s*)[$>%](?=\s)", r"\1 ", line)
            lines.append(shown if fence and takes else "")
    return "\n".join(lines)


def _from_makefile(text: str) -> str:
    lines = []
    for line in text.split("\n"):
        variable = re.match(r"([A-Za-z_]\w*)(\s*[:?+]?=\s*)(\S+)\s*(#.*)?$", line)
        if variable:
            # blank the blanks: NAME := 8 is NAME=8 to the shell, with the value where it stands
            name, gap, value = variable.group(1), variable.group(2), variable.group(3)
            lines.append(" " * (len(gap) - 1) + name + "=" + value)
        else:
            lines.append(line if line.startswith("\t") or lines and lines[-1].endswith("\\") else "")
    joined = "\n".join(re.sub(r"^\t(\s*)[@-]", r"\t\1 ", line) for line in lines)
    return re.sub(r"\$\(([A-Za-z_]\w*)\)", r"${\1}", joined).replace("$$", " $")


def _from_workflow(text: str) -> str:
    lines, block = [], -1
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if block >= 0 and (not line.strip() or indent > block):
            lines.append(re.sub(r"\$\{\{.*?\}\}", lambda m: "$" + "_" * (len(m.group()) - 1), line))
            continue
        block = -1
        match = re.match(r"(\s*(?:-\s+)?run:\s*)(.*)$", line)
        if match and re.fullmatch(r"[|>][+-]?\d?\s*(#.*)?", match.group(2)):
            block = len(match.group(1)) - len(match.group(1).lstrip(" -"))
            lines.append("")
        elif match:
            lines.append(" " * len(match.group(1)) + match.group(2))
        else:
            lines.append("")
    return "\n".join(lines)


def normal(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def read_launches(path: str, text: str) -> tuple[list[Launch], Shell]:
    """The launch lines of one file, and the shell that read them (for its variables)."""
    shell = Shell(shell_text(path, text))
    tasks = _slurm(shell)
    launches = []
    for command in shell.commands():
        launch = as_launch(path, command)
        if launch is not None and tasks is not None and launch.launcher == "python" and _under_srun(command):
            launch = replace(launch, launcher="srun", options={**launch.options, "ntasks": tasks})
        if launch is not None:
            launches.append(launch)
    return launches, shell


_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(--?[\w-]+)(?:[= \t]+)(\S+)", re.MULTILINE)
_SLURM_NAMES = {
    "--nodes": "nodes",
    "-N": "nodes",
    "--ntasks-per-node": "tasks",
    "--ntasks": "all",
    "-n": "all",
    "--gpus-per-node": "gpus",
    "--gres": "gpus",
}


def _slurm(shell: Shell) -> Arg | None:
    """Sets the variables that Slurm derives from ``#SBATCH`` lines; returns the number of tasks where they fix it."""
    found: dict[str, Word] = {}
    for match in _DIRECTIVE.finditer(shell.text):
        name = _SLURM_NAMES.get(match.group(1))
        number = re.search(r"\d+$", match.group(2))
        if name and number:
            begin = match.start(2) + number.start()
            found[name] = Word(number.group(), begin, begin + len(number.group()))
    for name, variables in (
        ("nodes", ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
        ("tasks", ("SLURM_NTASKS_PER_NODE",)),
        ("gpus", ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")),
    ):
        for variable in variables if name in found else ():
            shell.variables[variable] = Variable((found[name],))
    if "all" in found:
        word, count = found["all"], int(found["all"].raw)
    elif "tasks" in found:
        word, count = (
            found["tasks"],
            int(found["tasks"].raw) * int(found["nodes"].raw if "nodes" in found else 1),
        )
    else:
        return None
    return Arg(str(count), shell.mark(word.begin, word.end))


def _under_srun(command: Command) -> bool:
    """Started by srun once per task: srun itself states no other number."""
    words = [arg.text for arg in command.args]
    if "srun" not in words:
        return False
    before = words[words.index("srun") + 1 :]
    stop = next(
        (i for i, word in enumerate(before) if re.fullmatch(r".*python3?(\.\d+)?", word)), len(before)
    )
    return not any(re.match(r"(-n|-N|--ntasks|--nodes)", word) for word in before[:stop])


def as_launch(path: str, command: Command) -> Launch | None:
    """The command as a launch line, or ``None`` when it starts no training that is known."""
    args = command.args
    for position, arg in enumerate(args):
        name = posixpath.basename(arg.text)
        if name in LAUNCHERS or re.fullmatch(r"python3?(\.\d+)?", name):
            break
    else:
        return None
    launcher = "python" if name.startswith("python") else name
    rest = args[position + 1 :]
    if launcher == "python":
        while rest and rest[0].text in ("-u", "-O", "-B"):
            rest = rest[1:]
        if len(rest) > 1 and rest[0].text == "-m":
            module = rest[1].text
            if module == "accelerate.commands.launch":
                launcher, rest = "accelerate", [Arg("launch", rest[1].mark), *rest[2:]]
            elif module in _MODULES:
                launcher, rest = _MODULES[module], rest[2:]
            else:
                rest = rest[2:]
                return _finish(
                    path,
                    "python",
                    {},
                    Arg(module.replace(".", "/") + ".py", args[position].mark),
                    rest,
                    command,
                    args[position].mark,
                )
    if launcher == "accelerate":
        if not rest or rest[0].text != "launch":
            return None
        rest = rest[1:]
    if launcher in ("axolotl", "llamafactory-cli", "litgpt", "lightning", "tune"):
        while rest and not rest[0].text.startswith("-") and re.fullmatch(r"[a-z_]+", rest[0].text):
            sub, rest = rest[0].text, rest[1:]
            if launcher == "tune" and sub != "run":
                return None
            if launcher in ("axolotl", "llamafactory-cli") and sub not in ("train",):
                return None
    options: dict[str, Arg] = {}
    script: Arg | None = None
    bare = _BARE.get(launcher, set())
    if launcher in ("torchrun", "accelerate", "deepspeed", "composer", "tune", "python"):
        index = 0
        while index < len(rest):
            text = rest[index].text
            if text.startswith("-") and len(text) > 1:
                key, equals, inline = text.partition("=")
                name = normal(key)
                if equals:
                    options[name] = Arg(inline, rest[index].mark, rest[index].known)
                elif (
                    name in bare
                    or index + 1 >= len(rest)
                    or rest[index + 1].text.startswith("-")
                    or name in ("m", "module")
                ):
                    options[name] = Arg("true", rest[index].mark)
                else:
                    index += 1
                    options[name] = rest[index]
            else:
                script = rest[index]
                break
            index += 1
        rest = rest[index + 1 :] if script is not None else []
        if script is not None and ("m" in options or "module" in options) and not script.text.endswith(".py"):
            script = Arg(script.text.replace(".", "/") + ".py", script.mark, script.known)
    return _finish(path, launcher, options, script, rest, command, args[position].mark)


def _finish(
    path: str,
    launcher: str,
    options: dict[str, Arg],
    script: Arg | None,
    rest: list[Arg],
    command: Command,
    mark: Mark,
) -> Launch:
    flags: dict[str, Arg] = {}
    positionals: list[Arg] = []
    index = 0
    while index < len(rest):
        arg = rest[index]
        text = arg.text
        if re.match(r"--?[A-Za-z]", text):
            key, equals, inline = text.partition("=")
            if equals:
                flags[normal(key)] = Arg(inline, arg.mark, arg.known)
            elif index + 1 < len(rest) and not re.match(r"--?[A-Za-z]", rest[index + 1].text):
                flags[normal(key)] = rest[index + 1]
                index += 1
            else:
                flags[normal(key)] = Arg("true", arg.mark)
        elif match := re.match(r"\+{0,2}([A-Za-z_][\w.@/-]*)=(.*)$", text, re.DOTALL):
            flags[match.group(1)] = Arg(match.group(2), arg.mark, arg.known)
        else:
            positionals.append(arg)
        index += 1
    return Launch(path, launcher, mark, options, script, flags, tuple(positionals), command.env)
