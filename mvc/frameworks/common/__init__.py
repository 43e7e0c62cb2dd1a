"""Code that the callbacks of several frameworks share."""
