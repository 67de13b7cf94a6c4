"""How people write the parts of a training loop: names, losses, windows, updates, and what stands around them."""
