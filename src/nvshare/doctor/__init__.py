"""What is wrong with sharing here: ``gather`` looks, ``judge`` says what it means, nothing is changed."""
