"""Looking: thin input and output, each look bounded in time, none of it changes anything."""
