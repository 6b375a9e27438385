"""The peer: the program a volunteer runs to train a model together with other people's machines."""
