import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

ACCUMULATION = 4


def train(model, loader, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader) // ACCUMULATION)
    for epoch in range(epochs):
        for step, (inputs, targets) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(inputs), targets) / ACCUMULATION
            loss.backward()
            scheduler.step()
            if (step + 1) % ACCUMULATION == 0:
                optimizer.step()
                optimizer.zero_grad()
