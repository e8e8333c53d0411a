"""Test tools that ship with Holdfast; they may import anything, and nothing imports them."""
