"""The form of a state without the program that has it, and columns of tables brought into it."""
