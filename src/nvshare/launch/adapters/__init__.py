"""A GpuPool under the interfaces that people have already: joblib, Optuna, multiprocessing. Imported where used."""
