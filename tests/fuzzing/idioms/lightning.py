"""A LightningModule and its Trainer: the window is the Trainer's, or is written by hand under manual optimization.

Facts: lightning 2.6, ``loops/optimization/automatic.py``; tests/frameworks measures them.
"""

from __future__ import annotations

from ..plan import Plan
from ..script import Lines, indented, mark
from . import tasks, windows

QUIET = 'accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False'
HELD = ("model", "criterion")  # what the module holds


def write(plan: Plan) -> Lines:
    """The module's class, and what builds and fits it."""
    r, n = plan.recipe, plan.n
    plan.imports |= {"import lightning as L"}
    automatic = r.window == "automatic"
    loader = plan.objects["loader"]
    init = [f"self.{n.bare(what)} = {plan.objects[what]}" for what in HELD if what in plan.objects]
    if not automatic:
        init.append("self.automatic_optimization = False")
    methods = ["", *_training_step(plan), *_hooks(plan), "", *_optimizers(plan)]
    module = ["class Module(L.LightningModule):", *indented(["def __init__(self):", *indented(["super().__init__()", *init]), *methods])]
    window = f"accumulate_grad_batches={plan.k}, " if automatic else ""
    body = [
        f"{n.bare('loader')} = {loader}",
        f"trainer = L.Trainer(max_epochs={n.epochs}, {window}{QUIET})",
        mark(f"trainer.fit(Module(), {n.bare('loader')})", "fit"),
    ]
    if r.scaffold == "main":
        return [*module, "", "", "def main():", *indented(body), "", "", 'if __name__ == "__main__":', "    main()"]
    return [*module, "", "", *body]


def _training_step(plan: Plan) -> Lines:
    r, n = plan.recipe, plan.n
    target, *_ = tasks.inputs(plan)
    batch = "batch" if r.batch == "pair" else n.batch
    unpacked = [f"{target} = batch"] if r.batch == "pair" else []
    body = [*unpacked, *plan.before, *plan.forward]
    if r.log == "loss":
        body.append(f'self.log("train_loss", {n.loss})')
    if r.window == "automatic":
        body += [*plan.after, mark(f"return {n.loss}", "backward")]
    else:
        taken = [f"{n.optimizer} = self.optimizers()"] + ([f"{n.scheduler} = self.lr_schedulers()"] if r.schedule != "none" else [])
        body += [*plan.backward, *plan.after]
        body = [*taken, *body, *windows.gated(plan, plan.instead or plan.gate)]
    return [f"def training_step(self, {batch}, {n.i}):", *indented(body)]


def _hooks(plan: Plan) -> Lines:
    """What runs before a step of the Trainer; in a hook of every backward where a mutation moved it."""
    if plan.recipe.window != "automatic" or "clip" not in plan.update:
        return []
    name = "on_after_backward(self)" if "clip in every backward" in plan.traits else f"on_before_optimizer_step(self, {plan.n.bare('optimizer')})"
    return ["", f"def {name}:", *indented(plan.update["clip"])]


def _optimizers(plan: Plan) -> Lines:
    n = plan.n
    body = [f"{n.bare('optimizer')} = {plan.objects['optimizer'].replace(f'{n.model}.parameters()', 'self.parameters()')}"]
    if "scheduler" not in plan.objects:
        return ["def configure_optimizers(self):", *indented([*body, f"return {n.bare('optimizer')}"])]
    if "num_training_batches" in plan.objects["scheduler"]:
        body.append("self.trainer.fit_loop.setup_data()")  # the length is not known before
    body.append(f"{n.bare('scheduler')} = {plan.objects['scheduler']}")
    held = f'{{"scheduler": {n.bare("scheduler")}, "interval": "step"}}'
    return ["def configure_optimizers(self):", *indented([*body, f'return {{"optimizer": {n.bare("optimizer")}, "lr_scheduler": {held}}}'])]
