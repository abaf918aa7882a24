"""The parts of scripts/experiment.py, and grids for it."""
