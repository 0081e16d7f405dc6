"""The text that fills the holes of templates, made of a spec pass by pass."""
