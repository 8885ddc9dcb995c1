"""The paper's experiments with networks, as commands."""
