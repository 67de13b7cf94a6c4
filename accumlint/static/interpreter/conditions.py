"""What decides over an arm: conditions that nobody knows are tried both ways, and what depends on them is weighed."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir
from accumlint.static.interpreter.facts import calls_in_expression, ending_of, facts_of, is_settled, parts_of
from accumlint.static.interpreter.state import Abort, Frame, K, UPDATE_EFFECTS
from accumlint.static.values import Batches, Tensor, Test, Thing, Unknown, last_name

_HARMLESS = frozenset(
    "int float str len round min max sum mean format time perf_counter synchronize keys items values join get isinstance "
    "all_reduce gather barrier reduce detach cpu numpy tolist memory_allocated max_memory_allocated sqrt exp log10 range "
    "enumerate zip sorted list dict set type getattr hasattr is_main_process get_rank avg average_loss reset clear".split()
)


class Conditions:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def decide(self, key: str, default: Any, disturbable: bool = False) -> Any:
        """The value of an atom on this path: assigned, or the default; remembered for later flips."""
        if self.asked is not None:
            self.asked.append(key)
        if self.weighing:
            self.telling[key] = max(self.weighing, self.telling.get(key, 0))
        if key not in self.assigned:
            self.assigned[key] = default
            self.decided.append((key, default, disturbable))
            self._told.add(key)
        elif key not in self._told:
            self.decided.append((key, self.assigned[key], disturbable))
            self._told.add(key)
        # `use_deepspeed` holds, or the plugin is there
        if "deepspeed" in key.lower() and self.assigned[key] is (not key.endswith(" is None")):
            self.traits.add("under deepspeed")
        return self.assigned[key]

    def truth(self, value: Any, default: bool | None = None) -> bool:
        """The truth of a value on this path."""
        kind = type(value)
        if kind is bool:
            return value
        if kind is Test:
            return self._truth_of_test(value, default)
        if kind is Unknown:
            if "rank" in value.tags:
                return not self.vocabulary.named("rank", value.last)  # seen from the main rank, whose number is 0
            if self.assigned.get(f"{value.key} is None") is True:
                return False
            if value.batch >= 0:
                return self._momentary(value.key, value.batch, self.polarity if default is None else default, value.local)
            return bool(self.decide(value.key, self._default_of(value) if default is None else default))
        if kind is Quantity:
            if value.known:
                return value.ranks[0] != 0
            return bool(self.decide(str(value), True))
        if kind is Tensor:
            return self._momentary(value.key, value.batch, True if default is None else default, value.local)
        if kind is Thing and value.maybe_none:
            return not self.decide(value.maybe_none, False)
        if kind in (list, Batches, tuple, dict, str, int, Fraction):
            return bool(value)
        return value is not None and value is not ...

    def _default_of(self, value: Unknown) -> bool:
        # a thing that trains is there unless the script says otherwise
        if self.vocabulary.kind_of_name(value.last):
            return True
        return self.polarity

    def _momentary(self, key: str, batch: int, default: bool, local: bool) -> bool:
        """A condition that the data of one microbatch decides: on a flipped path it differs at one microbatch only."""
        stem = "~" + key.split("#")[0] + "".join(key.split("#")[1:]).lstrip("0123456789")
        at = self.decide(stem, None, True)
        if at is not None and self.microbatch == at:
            if self.disturbed is None:
                self.disturbed = (self.gates[-1] if self.gates else -1, self.microbatch, local)
            return not default
        return default

    def _truth_of_test(self, test: Test, default: bool | None) -> bool:
        op, parts = test.op, test.parts
        if op == "known":
            return parts[0]
        if op == "not":
            return not self.truth(parts[0], None if default is None else not default)
        if op == "checks":
            # `if args.do_train and os.listdir(args.output_dir): raise`: it takes one of them to get by, the last, if none is
            # about the data of a microbatch, which is as it should be
            first = all([self.truth(part, False if facts_of(part)[0] >= 0 else None) for part in parts[:-1]])
            return self.truth(parts[-1], False if first else None) and first
        if op == "and":
            return all([self.truth(part, default) for part in parts])
        if op == "or":
            return any([self.truth(part, default) for part in parts])
        if op == "none":
            subject = parts[0]
            if self.assigned.get(subject) is True:
                return False
            fallback = False if default is None else default
            return bool(self.decide(f"{subject} is None", self.assigned.get(subject) is False or fallback))
        if op == "equal":
            subject, constant = parts
            for key, value in self.assigned.items():
                if value is True and key.startswith(f"{subject} == ") and key != f"{subject} == {constant!r}":
                    return False
            # a mode that is compared with a word is taken to be that word on the path where flags are on
            fallback = self.polarity and isinstance(constant, str) if default is None else default
            return bool(self.decide(f"{subject} == {constant!r}", fallback))
        if op == "far":
            return parts[0]
        if "rank" in test.tags and op in ("atom", "equal"):
            return True  # seen from the main rank
        if op == "missing":
            return self._momentary(test.key, test.batch, False, test.local)
        if test.batch >= 0:
            return self._momentary(test.key, test.batch, self.polarity if default is None else default, test.local)
        return bool(self.decide(test.key, self.polarity if default is None else default))

    def _if(self, statement: ir.If, frame: Frame) -> Any:
        around, self.counted = self.counted, set()
        try:
            value = self.eval(statement.test, frame)
        finally:
            counted, self.counted = self.counted, around
        if ending_of(statement.body) or ending_of(statement.orelse) or self._weight(statement.site) == 2:
            self._rest_on_starts(counted)
        if self.scouting and (not is_settled(value) or isinstance(value, list)):  # what a list holds by then is not known yet
            return self._scout_if(statement, frame, value)
        body_ends, else_ends = ending_of(statement.body), ending_of(statement.orelse)
        default: bool | None = None
        if isinstance(value, Test) and value.op == "far" and value.parts[0] and body_ends == "continue" and self.loop_roles[-1:] == ["micro"]:
            return None  # `if step < done: continue`: a limit that is far away would leave every microbatch out
        if isinstance(value, Unknown) and "K" in value.tags and self.microbatch >= 0 and "step" in self.learned.arms.get((statement.site, 0), frozenset()):
            # `if self.due("update", K, progress)`: who is told K and lets step or not counts to K
            self.assumptions.add(f"`{value.last}` holds at the last microbatch of a window")
            value = (self.microbatch + 1) % K == 0
        if not is_settled(value):
            trains = [bool(self.learned.arms.get((statement.site, arm), frozenset()) & {"step", "backward"}) for arm in (0, 1)]
            if trains[0] != trains[1]:
                # the usual course is the one that trains
                default = trains[0]
            elif body_ends == "raise" and else_ends != "raise":
                default = False
                if isinstance(value, Test) and value.op == "and":
                    value = Test("checks", value.parts, value.key, value.batch, value.local, value.tags)
            elif else_ends == "raise" and statement.orelse:
                default = True
            elif body_ends and not statement.orelse:
                default = False  # early exits are the exception
        before = self.disturbed
        around, self.asked = self.asked, []
        chosen = self._weighed(value, default, self._weight(statement.site))
        led, self.asked = self.asked, around
        rank_test = chosen and isinstance(value, (Test, Unknown)) and "rank" in value.tags
        if self.disturbed is not before and self.disturbed is not None:
            # the place to look at is the jump that leaves the microbatch out
            arm = statement.body if chosen else statement.orelse
            jump = next((s.site for s in arm if isinstance(s, ir.Jump)), statement.site)
            self.disturbed = (jump, *self.disturbed[1:])
        tags = getattr(value, "tags", frozenset())
        if chosen and "period" in tags and not self.learned.effects.get(statement.site, frozenset()) & {"step", "backward"}:
            counters = tuple(sorted(tag for tag in tags if tag.startswith(("counter:", "index:"))))
            self.emit(
                Kind.PERIODIC, statement.site, counters=counters, effect=self._effect(statement.body),
                value=next((tag[6:] for tag in tags if tag.startswith("value:")), ""), whole="multiple of K" in tags,
                period=next((last_name(tag[5:].rpartition("%")[2]) for tag in tags if tag.startswith("text:")), ""),
            )  # fmt: skip
        body = statement.body if chosen else statement.orelse
        if not body:
            return None
        self._note_test(statement)
        self.gates.append(statement.site)
        self.led_by.append(led)
        self.rank_gates += rank_test
        try:
            return self.block(body, frame)
        except Abort:
            self.blocked.extend(led)
            raise
        finally:
            self.gates.pop()
            self.led_by.pop()
            self.rank_gates -= rank_test

    def _weight(self, site: int) -> int:
        if site in self.learned.inert:
            return 0
        return 2 if self.learned.effects.get(site, frozenset()) & UPDATE_EFFECTS else 1

    def _note_test(self, statement: ir.If) -> None:
        """Where the condition was computed: ``is_boundary = …`` above ``if is_boundary``."""
        test = statement.test
        while isinstance(test, ir.Unary) and test.op == "not":
            test = test.value
        if isinstance(test, (ir.Name, ir.Attr)) and self.key(test) in self.tests:
            self.traits.add(f"test of {statement.site}@{self.tests[self.key(test)]}")

    def _effect(self, body: list[ir.Stmt]) -> str:
        """What a body is for, by the names it calls: evaluate, checkpoint, log or other."""
        names: set[str] = set()
        for statement in ir.walk_statements(body):
            for node in _calls_of(statement):
                names.add(node)
        found = [group for group in ("evaluate", "checkpoint") if any(self.vocabulary.matches(group, n) for n in names)]
        if found:
            return found[0]
        if "save" in names or "save_pretrained" in names or "save_state" in names:
            return "checkpoint"
        if all(self.vocabulary.matches("log", name) or name in _HARMLESS for name in names):
            return "log"
        return "other"

    def _scout_if(self, statement: ir.If, frame: Frame, value: Any) -> Any:
        """Both arms, one after the other, so that all events below the condition are seen."""
        effects: set[str] = set()
        outcomes = []
        for arm, body in enumerate((statement.body, statement.orelse)):
            own: set[str] = set()
            self.scout_stack.append(("if", statement.site, effects))
            self.scout_stack.append(("arm", statement.site, own))
            self.gates.append(statement.site)
            self.asking.append(value)
            before = {name: held for name, held in frame.names.items()}
            try:
                outcomes.append(self.block(body, frame) if body else None)
            except Abort:
                outcomes.append("abort")
            finally:
                self.gates.pop()
                self.asking.pop()
                self.scout_stack.pop()
                self.scout_stack.pop()
            effects |= own
            known_arm = self.learned.arms.get((statement.site, arm), frozenset())
            self.learned.arms[statement.site, arm] = known_arm | frozenset(own)
            if arm == 0 and statement.orelse:
                # the second arm must not lose what the first one made: keep the richer value of each name
                after = frame.names
                for name, held in before.items():
                    if isinstance(after.get(name), (Unknown, type(None))) and not isinstance(held, (Unknown, type(None))):
                        after[name] = held
        known = self.learned.effects.get(statement.site, frozenset())
        self.learned.effects[statement.site] = known | frozenset(effects)
        # what raises ends the run: a path that stops at a check of arguments shows nothing
        jumps = any(isinstance(s, ir.Jump) and s.kind != "raise" for s in (*statement.body, *statement.orelse))
        if effects or known or jumps:
            self.learned.inert.discard(statement.site)
        else:
            self.learned.inert.add(statement.site)
        for _, _, outer in self.scout_stack:
            outer |= effects
        if effects & {"step", "clear", "scaler"}:
            self._learn_window(value)
            if "step" in effects and _speaks_of_window(value):
                self.learned.window_gates.add(statement.site)
        returned = [o for o in outcomes if isinstance(o, tuple)]
        if len(returned) == 2 and statement.orelse:
            first, second = returned
            return first if not isinstance(first[1], Unknown) and first[1] is not None else second
        return None

    def _learn_window(self, value: Any) -> None:
        """A condition gates a step: the number it counts to is K."""
        if not isinstance(value, Test):
            return
        if value.op in ("not", "and", "or"):
            for part in value.parts:
                self._learn_window(part)
        elif value.op == "modulo":
            period = value.parts[1]
            if isinstance(period, Unknown):
                if period.batch < 0 and not self.vocabulary.is_world(period.last):
                    self.learned.windows.add(period.key)
            elif isinstance(period, int) and 1 < period <= 4096 and self.learned.literal is None:
                self.learned.literal = period


def _speaks_of_window(value: Any) -> bool:
    """A condition that compares a count with K."""
    if not isinstance(value, Test):
        return False
    if value.op in ("not", "and", "or"):
        return any(_speaks_of_window(part) for part in value.parts)
    return value.op == "modulo"


def _calls_of(statement: ir.Stmt) -> set[str]:
    names: set[str] = set()
    for child in parts_of(statement):
        names |= calls_in_expression(child)
    return names
