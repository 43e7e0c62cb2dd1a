"""LC-Checkpoint (docs/lc.md): a training's state as a series of lossy deltas that are added up.

    step       one tensor's lossy delta: symbols, their values, and the addition
    quantise   makes steps from two states of a model, by ``buckets`` or ``levels``
    payload    encodes and decodes the steps of many tensors, of one or several times
    coders     how symbols are stored: huffman, packed, ans
    stages     base classes of the stages, and the short form of a pipeline

A *step* is the lossy delta of one tensor. It starts from the decoder's state, not from the
training's previous state. So the next step corrects the error of the step before. For this, the
encoder must have a copy of the decoder's state, and add each step to the copy with
``Addition.apply``. No module here does I/O or starts threads.
"""
