"""Hugging Face Trainer: the division of the window belongs to the Trainer.

Facts (transformers 4.48 to 5.24, ``trainer.py`` ``training_step`` and ``get_batch_samples``): the window is fetched ahead and
its labels counted into ``num_items_in_batch``; the loss is divided by the window length unless the Trainer believes
that it is scaled already: ``model_accepts_loss_kwargs`` (true for nearly every model from 5.0 on) with a count, or a
``compute_loss_func``. ``model_accepts_loss_kwargs = False`` after ``super().__init__()`` (4.48 and later) or
``loss_is_scaled_for_ga = False`` (5.19 and later) bring the division back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import RANKS, Quantity
from accumlint.static.frameworks.base import Table, subject
from accumlint.static.frameworks.torch.backward import backward
from accumlint.static import syntax as ir
from accumlint.static.values import MISSING, Closure, Instance, Tensor, Thing, Unknown

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

TABLE = Table()
TABLE.bases = {
    "Trainer": "hf_trainer", "Seq2SeqTrainer": "hf_trainer", "SFTTrainer": "hf_trainer", "SentenceTransformerTrainer": "hf_trainer",
    "DPOTrainer": "trl_preference", "RewardTrainer": "trl_preference", "KTOTrainer": "trl_preference", "ORPOTrainer": "trl_preference",
    "GRPOTrainer": "trl_preference", "CPOTrainer": "trl_preference", "BCOTrainer": "trl_preference", "PPOTrainer": "trl_preference",
}  # fmt: skip


def _model(run: Interpreter, instance: Instance) -> Thing:
    key = f"model of {instance.number}"
    held = run.things.get(key)
    if held is None:
        held = run.things[key] = run.thing("data_parallel", "model", instance.site)
        held.models = frozenset({held.number})
        held.state["constructor"] = "AutoModelForCausalLM"
        subject(run, held)
    return held


def _inherited_loss(run: Interpreter, instance: Instance, call: Call) -> Any:
    """``super().compute_loss(...)``: by the window's count, with the ranks' average undone."""
    model = call.get(0, "model")
    inputs = call.get(1, "inputs")
    if not isinstance(inputs, Tensor):
        inputs = run.batch_data("inputs")
    items = run.things.get("num_items_in_batch")
    given = call.get(3, "num_items_in_batch")
    handed_on = any(argument.star for argument in call.node.args)  # *args, **kwargs: the count may be among them
    counted = (given is not None or handed_on) and items is not None
    ranks = RANKS if _model(run, instance).kind == "data_parallel" else 1
    weight = Quantity.of(ranks, "world") / items if counted else Quantity.of(1) / run.count(inputs.batch, "valid")
    from accumlint.contract.events import Part

    part = Part(inputs.batch, "valid", weight, reduced_at=call.site, varies=True)
    models = frozenset({_model(run, instance).number}) if not isinstance(model, Thing) else model.models
    parallel = "ddp" if ranks > 1 else ""  # judged as one process: nothing is averaged
    reached = {"models": models, "graph": True, "sync": frozenset((m, True) for m in models or ()) if parallel else None, "parallel": parallel}
    loss = Tensor("scalar", "super().compute_loss()", inputs.batch, (part,), varies=True, basis="valid", **reached)
    if call.kwargs.get("return_outputs") is True or (len(call.args) > 2 and call.args[2] is True):
        return (loss, Tensor("output", "outputs", inputs.batch, **reached))
    return loss


TABLE.inherited["hf_trainer", "compute_loss"] = _inherited_loss
TABLE.inherited["hf_trainer", "training_step"] = lambda run, instance, call: Unknown(call.key)
TABLE.attributes["hf_trainer", "model_accepts_loss_kwargs"] = lambda run, value, site: Unknown("model_accepts_loss_kwargs")
TABLE.attributes["hf_trainer", "args"] = lambda run, value, site: Unknown("args")
TABLE.attributes["hf_trainer", "model"] = lambda run, value, site: _model(run, value)
TABLE.attributes["hf_trainer", "accelerator"] = lambda run, value, site: _accelerator(run, value)
TABLE.attributes["hf_trainer", "label_smoother"] = lambda run, value, site: None
TABLE.attributes["hf_trainer", "current_gradient_accumulation_steps"] = lambda run, value, site: Quantity.of(3, "K")


def _accelerator(run: Interpreter, instance: Instance) -> Thing:
    key = f"accelerator of {instance.number}"
    held = run.things.get(key)
    if held is None:
        held = run.things[key] = run.thing("accelerator", "accelerator", instance.site)
        held.state.update(steps=Quantity.of(1), step=0, sync=True, entered=[])
    return held


def scaled_already(run: Interpreter, instance: Instance) -> bool:
    """Whether the Trainer believes that ``compute_loss`` has divided by the window."""
    for name in ("loss_is_scaled_for_ga", "model_accepts_loss_kwargs"):
        value = instance.attributes.get(name)
        if value is None:
            found = run._class_attribute(instance.cls, name)
            value = None if found is MISSING else found
        if isinstance(value, bool):
            return value
    return True


def drive(run: Interpreter, instance: Instance, length: int) -> None:
    """What the Trainer does around ``compute_loss``: windows of K microbatches, counted ahead."""
    method = run.method_of(instance, "compute_loss")
    own_step = run.method_of(instance, "training_step")
    if method is None and own_step is None:
        return
    if not run.truth(Unknown("args.average_tokens_across_devices"), True):
        # counted per rank: each process is on its own
        _model(run, instance).kind = "model"
    takes_count = method is not None and any(p.name == "num_items_in_batch" or p.kind == "**" for p in method.function.parameters)
    # without the parameter it runs only before transformers 4.46, where the Trainer always divides; and a model of
    # the project's own (no **kwargs in its forward) is divided for to this day
    stock = any(w in run.module.mentions for w in ("from_pretrained", "from_config")) or any("For" in m and m.startswith("AutoModel") for m in run.module.mentions)
    believes = scaled_already(run, instance) if _says_so(run, instance) else takes_count and (stock or own_step is not None)
    play(run, instance, method, own_step, length, not believes)


def _says_so(run: Interpreter, instance: Instance) -> bool:
    """The script sets the flag itself."""
    return any(
        isinstance(instance.attributes.get(name), bool) or run._class_attribute(instance.cls, name) is not MISSING
        for name in ("loss_is_scaled_for_ga", "model_accepts_loss_kwargs")
    )


def play(run: Interpreter, instance: Instance, method: Any, own_step: Any, length: int, divides: bool) -> None:
    """Windows of the Trainer around a loss method, or a loss function that takes (outputs, labels)."""
    run.traits.add("framework transformers")
    run.distributed = True
    site = (method or own_step).function.site  # type: ignore[union-attr]
    model = _model(run, instance)
    if not run.module.mentions & {"num_processes", "world_size", "average_tokens_across_devices", "get_world_size"}:
        model.kind = "model"  # a script that never speaks of ranks is judged as a single process
    optimizer = run.thing("optimizer", "the Trainer's optimizer", site)
    optimizer.models = model.models
    subject(run, optimizer)
    windows = 1 if run.scouting else max(1, length // 3)
    takes_count = method is not None and any(p.name == "num_items_in_batch" or p.kind == "**" for p in method.function.parameters)
    run.window_names.setdefault("gradient_accumulation_steps of TrainingArguments", -1)
    run.emit(Kind.LOOP, site, phase="enter", role="micro")
    for _ in range(windows):
        batches = [run.batch_data("inputs") for _ in range(1 if run.scouting else 3)]
        total = Quantity.of(0)
        for batch in batches:
            # the Trainer counts in the unit of the loss, so shifted and unshifted counts are one here
            run.counts[batch.batch, "unshifted"] = run.counts[batch.batch, "valid"]
        for batch in batches:
            total = total.plus(run.count(batch.batch, "valid")) or total
        items = (total.reduced() if model.kind == "data_parallel" else total).tagged("count", "window count")
        # a Trainer that divides by itself hands out no count
        run.things["num_items_in_batch"] = None if divides else items
        for batch in batches:
            run.microbatch += 1
            run.batch_of[run.microbatch] = batch.batch
            run.emit(Kind.MICROBATCH, site)
            if own_step is not None:
                loss = run.call_closure(own_step, [model, batch, *([items] if len(own_step.function.parameters) > 3 else [])], {}, site)
                if any(e.kind is Kind.BACKWARD and e.microbatch == run.microbatch for e in run.events[-40:]):
                    continue
                if method is None or not isinstance(loss, Tensor):
                    continue
            else:
                assert method is not None
                arguments = _loss_function_arguments(run) if instance.role == "loss function" else _loss_method_arguments
                extra = {"num_items_in_batch": run.things["num_items_in_batch"]} if takes_count else {}
                loss = run.call_closure(method, arguments(model, batch), extra, site)
            if isinstance(loss, (list, tuple)) and loss:
                loss = loss[0]
            where = _return_site(method) if method is not None else site
            backward(run, loss, where, owner="transformers", divisor=Quantity.of(3, "K", "framework") if divides else None)
        run.emit(Kind.STEP, site, optimizer.number, models=optimizer.models, owner="transformers")
        run.emit(Kind.CLEAR, site, optimizer.number, models=optimizer.models, by="transformers")
    run.emit(Kind.LOOP, site, phase="exit", role="micro", whole=True, infinite=False, broke=False, ended=False, known_length=False, framework=True)


def _loss_method_arguments(model: Thing, batch: Tensor) -> list[Any]:
    return [model, batch]


def _loss_function_arguments(run: Interpreter) -> Any:
    """``compute_loss_func(outputs, labels, num_items_in_batch=…)`` gets what the model returned."""

    def arguments(model: Thing, batch: Tensor) -> list[Any]:
        outputs = Tensor("output", "outputs", batch.batch, models=model.models, graph=True, parallel="ddp" if model.kind == "data_parallel" else "")
        return [outputs, Tensor("data", f"labels#{batch.batch}", batch.batch, role="labels")]

    return arguments


def _trainer(run: Interpreter, call: Call) -> Any:
    made = run.thing("hf_trainer_object", "trainer", call.site)
    made.state["loss"] = call.kwargs.get("compute_loss_func")
    run.traits.add("framework transformers")
    return made


for _origin in ("transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer"):
    TABLE.functions[_origin] = _trainer


def _train(run: Interpreter, receiver: Thing, call: Call) -> Any:
    """``trainer.train()`` with a loss function of the script's own."""
    loss = receiver.state.get("loss")
    if isinstance(loss, Closure):
        cls = ir.Class("Trainer", loss.function.site, [], [], {}, [], loss.function.module)
        play(run, Instance(cls, run.number(), site=loss.function.site, role="loss function"), loss, None, run.length, False)
    return Unknown(call.key)


TABLE.methods["hf_trainer_object", "train"] = _train
TABLE.methods["hf_trainer_object", "*"] = lambda run, receiver, call: Unknown(call.key)


def _return_site(method: Any) -> int:
    """The last return of ``compute_loss``: there the loss leaves the script."""
    from accumlint.static import syntax as ir

    sites = [s.site for s in ir.walk_statements(method.function.body) if isinstance(s, ir.Jump) and s.kind == "return"]
    return max(sites) if sites else method.function.site


TABLE.roles["drive hf_trainer"] = drive


def _arguments(run: Interpreter, call: Call) -> Any:
    run.traits.add("framework transformers")
    if "gradient_accumulation_steps" in call.kwargs:
        run.window_names.setdefault("gradient_accumulation_steps", call.site)
    return Unknown("args")


for _name in ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig"):
    TABLE.functions[_name] = _arguments

