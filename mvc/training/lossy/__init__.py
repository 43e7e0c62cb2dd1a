"""Production weights while training: reduction, skipping versions, drift detection.

Handing them to who serves: ``mvc.serving``.
"""
