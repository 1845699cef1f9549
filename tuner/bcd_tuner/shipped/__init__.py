"""What is copied into the folder of a compiled network as it is, and works there without this package."""
