"""The one-shot report on a tree: its model, the pictures in it, and one file per format."""
