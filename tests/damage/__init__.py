"""Damage: flipped bits, cut, exchanged and lost files. Nothing may come back wrong."""
