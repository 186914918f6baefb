"""From a schema file to everything that repeats a signature. ``python -m codegen --help`` says how.

Reading order: ``model`` (what a schema file means), ``schema_file`` and ``parse`` (text to model), ``hosts`` (model to spelling),
``emit`` (spelling to files), ``cli`` (the verbs).
"""
