"""Stores of content-addressed bytes: the implementations of `ports.BlobStore`."""
