"""Versions out of a running training, and back into one (row 4). Its modules import torch."""
