"""The documentation as a whole: tables that are made from the commands, and links."""
