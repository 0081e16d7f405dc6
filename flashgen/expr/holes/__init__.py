"""What templates print of a spec, pass by pass."""
