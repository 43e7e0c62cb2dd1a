"""The experiments of three theses and a paper, run on mvc's public API.

    python examples/reproduce GROUP COMMAND [OPTIONS]

``drift`` (VSOL), ``derived`` (MMlib), ``rework`` (LC-Checkpoint) and ``distributed`` (GM and FGM)
are one folder each; they do not import each other. What they share is here:

- ``experiment``: the protocol. An experiment is a dataclass whose fields are its command's
  options. It lists its cases, runs one case, and makes a report of the rows: plain values.
- ``workspace``: the folder of a run. It keeps the result of a case as JSON, so that nothing is
  measured twice and an interrupted run goes on, and writes reports.
- ``cli``: commands from experiments. ``table`` and ``plot`` show a report that was kept.
- ``render``: Markdown tables and pictures. A report's schema names the ``render`` module of its
  experiment, which has ``markdown(report)`` and ``picture(report, form)``.
- ``data`` and ``networks``: samples, and what learns them.

The papers' own figures are JSON files next to the experiments, published results are in
``results``. Nothing here is imported by mvc, and mvc's documented modules are all that it needs.
"""
