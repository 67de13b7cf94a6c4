"""What runs inside the user's process. Only modules below this package import torch.

Nothing here may raise into the user's code, draw from its random generators, or change a number it computes.
"""
