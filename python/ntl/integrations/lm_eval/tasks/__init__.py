"""The task group `ntl` of lm-evaluation-harness, which loads its files by their paths."""
