"""Data sets, models and losses, with the number of valid targets that the simulation counts with."""

from __future__ import annotations

from ..plan import Plan
from ..script import Lines, indented, mark

# valid targets of the eight microbatches of an epoch, for two ranks: those of accumlint.static.interpreter
TARGETS = ((3, 2), (6, 5), (1, 4), (4, 1), (4, 6), (4, 3), (2, 3), (5, 4))
LENGTH = 8
ROWS = {False: 8, True: 2}  # rows of a microbatch where a framework deals rows out to the ranks: of measurements, of sentences
SHIFT = 2  # labels of a microbatch that the causal shift leaves out: one per row


def dataset(plan: Plan) -> Lines:
    """A Dataset whose items are whole microbatches."""
    recipe = plan.recipe
    if recipe.framework != "torch":
        return _rows(plan)
    parallel = recipe.ddp != "none"
    plan.imports |= {"import torch", "from torch.utils.data import DataLoader, Dataset"}
    pair = 'return {"inputs": x, "labels": y}' if recipe.batch == "dict" else "return x, y"
    if not recipe.varies:
        y = "torch.randn(8, 1, generator=generator)" if recipe.task == "regression" else "torch.randint(0, 3, (8,), generator=generator)"
        seed = "self.rank * 100 + index" if parallel else "index"
        return [
            "class Measurements(Dataset):",
            *(["    def __init__(self, rank=0):", "        self.rank = rank", ""] if parallel else []),
            "    def __len__(self):",
            f"        return {LENGTH}",
            "",
            "    def __getitem__(self, index):",
            f"        generator = torch.Generator().manual_seed({seed})",
            "        x = torch.randn(8, 4, generator=generator)",
            f"        y = {y}",
            f"        {pair}",
        ]
    causal = recipe.task == "causal"
    # without a shift, the simulation counts with the label positions before one
    lengths = TARGETS if causal else tuple((first + SHIFT, second + SHIFT) for first, second in TARGETS)
    if not parallel:
        lengths = tuple(first for first, _ in lengths)
    which = "LENGTHS[index][self.rank]" if parallel else "LENGTHS[index]"
    column = "place // 2 + 1" if causal else "place // 2"
    return [
        f"LENGTHS = {lengths!r}",
        "",
        "",
        "class Sentences(Dataset):",
        *(["    def __init__(self, rank=0):", "        self.rank = rank", ""] if parallel else []),
        "    def __len__(self):",
        "        return len(LENGTHS)",
        "",
        "    def __getitem__(self, index):",
        "        generator = torch.Generator().manual_seed(index)",
        f"        x = torch.randint(0, 7, (2, {6 if causal else 5}), generator=generator)",
        "        y = torch.full_like(x, -100)",
        *(["        y[:, 0] = x[:, 0]"] if causal else []),
        f"        for place in range({which}):",
        f"            y[place % 2, {column}] = x[place % 2, {column}]",
        f"        {pair}",
    ]


def _rows(plan: Plan) -> Lines:
    """A Dataset of rows for two ranks, in the order in which a framework deals them out: by batches, or one by one."""
    recipe = plan.recipe
    plan.imports |= {"import torch", "from torch.utils.data import DataLoader, Dataset"}
    pair = 'return {"inputs": x, "labels": y}' if recipe.batch == "dict" else "return x, y"
    if not recipe.varies:
        return [
            "class Measurements(Dataset):",
            "    def __len__(self):",
            f"        return {LENGTH * ROWS[False] * (2 if recipe.ddp != 'none' else 1)}",
            "",
            "    def __getitem__(self, index):",
            "        generator = torch.Generator().manual_seed(index)",
            "        x = torch.randn(4, generator=generator)",
            f"        y = {'torch.randn(1, generator=generator)' if recipe.task == 'regression' else 'torch.randint(0, 3, (), generator=generator)'}",
            f"        {pair}",
        ]
    causal = recipe.task == "causal"
    lengths = TARGETS if causal else tuple((first + SHIFT, second + SHIFT) for first, second in TARGETS)
    if recipe.framework == "trainer":
        return _dictionaries(plan)
    dealt = ["batch, row = divmod(index, 2)", "number, rank = divmod(batch, 2)"] if recipe.framework == "accelerate" else ["place, rank = divmod(index, 2)", "number, row = divmod(place, 2)"]
    column = "place // 2 + 1" if causal else "place // 2"
    return [
        f"LENGTHS = {lengths!r}",
        "",
        "",
        "class Sentences(Dataset):",
        "    def __len__(self):",
        f"        return {LENGTH * ROWS[True] * 2}",
        "",
        "    def __getitem__(self, index):",
        *indented(dealt, 2),
        "        generator = torch.Generator().manual_seed(index)",
        f"        x = torch.randint(0, 7, ({6 if causal else 5},), generator=generator)",
        "        y = torch.full_like(x, -100)",
        *(["        y[0] = x[0]"] if causal else []),
        "        for place in range(row, LENGTHS[number][rank], 2):",
        f"            y[{column}] = x[{column}]",
        f"        {pair}",
    ]


def _dictionaries(plan: Plan) -> Lines:
    """Rows as a Trainer takes them."""
    return [
        "class Sentences(Dataset):",
        "    def __len__(self):",
        f"        return {LENGTH}",
        "",
        "    def __getitem__(self, index):",
        "        ids = torch.arange(10) % 16",
        "        labels = torch.full_like(ids, -100)",
        "        labels[1 : index % 5 + 3] = ids[1 : index % 5 + 3]",
        '        return {"input_ids": ids, "labels": labels}',
    ]


def dataset_name(plan: Plan) -> str:
    return "Sentences" if plan.recipe.varies else "Measurements"


def model(plan: Plan) -> str:
    """The expression that makes the model."""
    plan.imports.add("from torch import nn")
    if plan.recipe.varies:
        return "nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))"
    return "nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))" if plan.recipe.task == "regression" else "nn.Linear(4, 3)"


def inputs(plan: Plan) -> tuple[str, str, str]:
    """What a batch is unpacked into: (target of the loop, expression of the inputs, of the labels)."""
    n = plan.n
    if plan.recipe.batch == "dict":
        return n.batch, f'{n.batch}["inputs"]', f'{n.batch}["labels"]'
    return f"{n.x}, {n.y}", n.x, n.y


def valid(plan: Plan, labels: str, shifted: bool = True) -> str:
    """The number of valid targets of a microbatch, as a tensor expression."""
    if plan.recipe.task == "causal" and shifted:
        labels = f"{labels}[:, 1:]"
    return (f"({labels} != -100).sum()", f"{labels}.ne(-100).sum()", f"(~{labels}.eq(-100)).sum()")[plan.recipe.names % 3]


def loss(plan: Plan, reduction: str) -> Lines:
    """Lines that leave the loss of one microbatch in its variable. ``reduction``: mean or sum."""
    recipe, n = plan.recipe, plan.n
    _, x, y = inputs(plan)
    if recipe.loss == "helper":
        name = "compute_loss"
        plan.definitions += ["", "", *_helper(plan, name, reduction)]
        return [mark(f"{n.loss} = {name}({n.model}, {x}, {y})", "loss")]
    return [mark(line, "loss") if line.startswith(n.loss) else line for line in _formula(plan, reduction, n.model, x, y, recipe.loss == "module")]


def _helper(plan: Plan, name: str, reduction: str) -> Lines:
    body = _formula(plan, reduction, "model", "inputs", "labels", False)
    last = body[-1].partition(" = ")[2]
    return [f"def {name}(model, inputs, labels):", *indented([*body[:-1], mark(f"return {last}", "loss")])]


def _formula(plan: Plan, reduction: str, network: str, x: str, y: str, module: bool) -> Lines:
    recipe, n = plan.recipe, plan.n
    plan.imports.add("import torch.nn.functional as F")
    summed = ', reduction="sum"' if reduction == "sum" else ""
    if recipe.task in ("regression", "classification"):
        function = "mse_loss" if recipe.task == "regression" else "cross_entropy"
        made = "MSELoss" if recipe.task == "regression" else "CrossEntropyLoss"
        if module:
            criterion(plan, f"nn.{made}({summed.removeprefix(', ')})")
            return [f"{n.loss} = {plan.n.criterion}({network}({x}), {y})"]
        return [f"{n.loss} = F.{function}({network}({x}), {y}{summed})"]
    if recipe.task == "masked":
        out = [
            f"{n.logits} = {network}({x})",
            f"mask = {y} != -100",
            f'each = F.cross_entropy({n.logits}.flatten(0, 1), {y}.clamp(min=0).flatten(), reduction="none")',
        ]
        tail = " / mask.sum().clamp(min=1)" if reduction == "mean" else ""
        return [*out, f"{n.loss} = (each * mask.flatten()).sum(){tail}"]
    shift = recipe.task == "causal"
    logits = f"{n.logits}[:, :-1]" if shift else n.logits
    labels = f"{y}[:, 1:]" if shift else y
    flat = recipe.names % 2 == 0
    arguments = f"{logits}.flatten(0, 1), {labels}.flatten()" if flat else f"{logits}.transpose(1, 2), {labels}"
    if module:
        criterion(plan, f"nn.CrossEntropyLoss(ignore_index=-100{summed})")
        return [f"{n.logits} = {network}({x})", f"{n.loss} = {plan.n.criterion}({arguments})"]
    return [f"{n.logits} = {network}({x})", f"{n.loss} = F.cross_entropy({arguments}, ignore_index=-100{summed})"]


def criterion(plan: Plan, expression: str) -> None:
    """A loss object that is built once."""
    plan.objects["criterion"] = expression
