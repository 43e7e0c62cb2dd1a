"""LC-Checkpoint (seed 001): a training's state as a chain of lossy deltas that are added to it.

    step       one tensor's delta: symbols, their values, and the addition
    quantise   from two states of a model to steps, by ``buckets`` or ``levels``
    payload    encodes and decodes the steps of many tensors, of one or several times
    coders     how symbols are stored: huffman, packed, ans
    stages     common parts of the stages, and the short form of a line

A delta starts from the decoder's state, not from the training's previous state: the error of one
delta is part of the next one. So the encoder must add each step to its own copy of that state, with
``Addition.apply``, as the decoder does. No module here does I/O or starts threads.
"""
