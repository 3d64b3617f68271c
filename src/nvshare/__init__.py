"""nvshare: several processes or containers share one NVIDIA GPU, each as if it owned the card."""

__version__ = "0.2.0"
