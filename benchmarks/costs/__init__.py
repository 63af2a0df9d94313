"""What it takes to build, start, call, retrain and watch a predictor."""
