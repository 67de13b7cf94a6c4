import math

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

ACCUMULATION = 4


def train(model, loader, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs * math.ceil(len(loader) / ACCUMULATION))
    for epoch in range(epochs):
        for step, (inputs, targets) in enumerate(loader):
            # the last window of an epoch may be short: it is divided by its own size
            size = min(ACCUMULATION, len(loader) - step // ACCUMULATION * ACCUMULATION)
            loss = torch.nn.functional.mse_loss(model(inputs), targets) / size
            loss.backward()
            if (step + 1) % ACCUMULATION == 0 or step + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
