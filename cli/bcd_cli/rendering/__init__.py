"""Text and tables for people, made from plain values. Nothing here opens, tunes or prints by itself."""
