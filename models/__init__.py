"""The model zoo: each model is a module with a frozen `Config` and `make(config, dataset)`.

`make` returns an `embedps.Recommender`: tables, features and a function that builds the dense
network. The Keras models are in `models/networks/`, so that `--help` does not load TensorFlow.
"""

if __name__ != "embedps.models":  # in a checkout, Python finds the folder by its own name too
    raise ImportError(
        f"the models must be imported as embedps.models, but this is {__name__}, a second copy of "
        "each class: write `from embedps.models import dlrm`"
    )
