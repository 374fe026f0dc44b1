"""Adapters for tools of model evaluation. Each module needs the packages of its tool, which its error names.

- `ntl.integrations.deepeval`: a judge and a G-Eval metric
- `ntl.integrations.inspect_ai`: a model provider and a scorer
- `ntl.integrations.lm_eval`: a task group, and a program that runs it
"""
