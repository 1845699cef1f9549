"""The registry: keys, states and bytes of tuned schedules. It knows no tensor compiler."""
