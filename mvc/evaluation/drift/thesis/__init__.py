"""What the thesis states, table by table (figures only), and which pipelines its rows are.

"A Versioning System for Online Learning systems", chapter 4. Our numbers are made by
``mvc.evaluation``; these stand beside them.
"""
