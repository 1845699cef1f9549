"""The tuner: Bayesian code diffusion on TVM MetaSchedule."""
