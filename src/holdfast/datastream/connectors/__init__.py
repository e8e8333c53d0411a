"""Where streams begin and end outside of Holdfast: a module for each kind of place, named as in PyFlink."""
