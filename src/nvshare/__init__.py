"""nvshare: several processes or containers share one NVIDIA GPU, each as if it owned the card."""

__version__ = "0.1.0"
