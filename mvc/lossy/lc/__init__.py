"""LC-Checkpoint (docs/lc.md) stores the states of a training as a series of lossy deltas.

    step       the lossy delta of one tensor: symbols, and the number that each symbol adds
    quantise   makes steps from two states of a model, by ``buckets`` or ``levels``
    payload    encodes and decodes the steps of many tensors
    coders     encode symbols: huffman, packed, ans
    stages     base classes of the stages, and the short form of a pipeline

A *step* is the lossy delta of one tensor. A step starts from the state that a decoder recovers, not
from the exact previous state of the training. So each step corrects the error of the previous step.
The encoder must have a copy of the decoder's state, and add each step to the copy with
``Addition.apply``. No module here does I/O or starts threads.
"""
