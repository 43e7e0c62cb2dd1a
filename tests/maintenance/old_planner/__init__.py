"""The planner of whole versions that repack had before: an oracle for the one over contents."""
