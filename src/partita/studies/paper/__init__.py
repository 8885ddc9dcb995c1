"""The paper's experiments: `partita reproduce NAME`."""
