"""The first witness: reads a script and simulates its update windows. Never runs the user's code."""
