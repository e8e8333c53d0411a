"""What a program asks for, and how it is cut into stages."""
