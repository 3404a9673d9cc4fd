"""All ranks' windows made one: rounds in which the workers agree on windows and add up their lanes."""
