"""Users' modules and their inputs: model files, model zoos, samples, data sets, layouts."""
