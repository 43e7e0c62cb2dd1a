"""Protocols as pure state machines: a coordinator and a worker each (numpy only).

``named`` creates them by name. Neither side does I/O or has a clock: the simulator and the runner
deliver their messages.
"""
